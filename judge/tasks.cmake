# The tasks of the judge, in the order of its reports. The only list of them: each has its directory in
# judge/task/tasks/ (card, statement, example adapter), a function make_<task>() and the bundled
# contenders in contenders/<task>/.
set(TOUCHSTONE_JUDGE_TASKS
  layer_norm_backward
  softmax_topk
  kv_cache
  flash_attention_forward
  flash_attention_backward
  beam_search
  tree_verify
  ternary_linear)
