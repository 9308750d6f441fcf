"""NumPy mutants of layer norm; see mutants.cc. Bugs of axes, broadcasting and dtypes.

  MUTANT(np_keepdims, "statistics without keepdims: right only for square inputs, else an error")
  MUTANT(np_axis_0, "statistics over the batch")
  MUTANT(np_ddof, "np.var(ddof=1)")
  MUTANT(np_half, "computes in float16")
  MUTANT(np_sum_axis, "dgamma summed over the columns and broadcast")
  MUTANT(np_mean_not_sum, "dgamma and dbeta by mean instead of sum")
  MUTANT(np_gamma_twice, "dx multiplies by gamma twice")
  MUTANT(np_autograd_detach, "mean and variance taken for constants in the backward")
  MUTANT(np_std_not_var, "divides by std + eps")
  MUTANT(np_nan_to_num, "np.nan_to_num on the result")
  MUTANT(np_wrong_shape, "dgamma has shape [1, cols]")
  MUTANT(np_cache_module, "the cache is a module global")
  MUTANT(np_in_place, "centres x in place")
  MUTANT(np_float32_sums, "running sums over rows in float16 steps")
"""
import numpy as np

kept = {}


def forward(bug, rows, cols, eps, x, gamma, beta):
    wide = x.astype(np.float16 if bug == "np_half" else np.float64)
    axis = 0 if bug == "np_axis_0" else 1
    keep = bug != "np_keepdims"
    mean = wide.mean(axis=axis, keepdims=keep)
    if bug == "np_in_place":
        x -= mean.astype(np.float32)
    variance = wide.var(axis=axis, keepdims=keep, ddof=1 if bug == "np_ddof" else 0)
    rstd = 1 / np.sqrt(variance + eps)
    if bug == "np_std_not_var":
        rstd = 1 / (np.sqrt(variance) + eps)
    cache = {"mean": mean, "rstd": rstd}
    if bug == "np_cache_module":
        kept.update(cache)
    y = (wide - mean) * rstd * gamma + beta
    if bug == "np_nan_to_num":
        y = np.nan_to_num(y)
    return y.astype(np.float32), cache


def backward(bug, rows, cols, eps, dy, x, gamma, cache):
    if bug == "np_cache_module":
        cache = kept
    wide = dy.astype(np.float64)
    xhat = (x - cache["mean"]) * cache["rstd"]
    g = wide * gamma
    a, b = g.mean(axis=1, keepdims=True), (g * xhat).mean(axis=1, keepdims=True)
    if bug == "np_autograd_detach":
        a = b = 0
    dx = cache["rstd"] * (g - a - xhat * b)
    if bug == "np_gamma_twice":
        dx = dx * gamma
    if bug == "np_nan_to_num":
        dx = np.nan_to_num(dx)
    reduce = np.mean if bug == "np_mean_not_sum" else np.sum
    dgamma, dbeta = reduce(wide * xhat, axis=0), reduce(wide, axis=0)
    if bug == "np_sum_axis":
        dgamma = np.resize((wide * xhat).sum(axis=1), cols)
    if bug == "np_float32_sums":
        total = np.zeros(cols, np.float16)
        for row in wide:
            total = (total + row).astype(np.float16)
        dbeta = total
    if bug == "np_wrong_shape":
        dgamma = dgamma[None, :, None]
    return dx.astype(np.float32), dgamma.astype(np.float32), dbeta.astype(np.float32)


for _bug in [line.split("(")[1].split(",")[0] for line in __doc__.splitlines() if "MUTANT(" in line]:
    globals()[f"layer_norm_forward__{_bug}"] = lambda *a, b=_bug: forward(b, *a)
    globals()[f"layer_norm_backward__{_bug}"] = lambda *a, b=_bug: backward(b, *a)
