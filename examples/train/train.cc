// Trains a small ternary decoder on the text of a file and continues it: train TEXT FOLDER.
// [snippet]
#include <touchstone/touchstone.h>

#include <iostream>

int main(int argc, char** argv) {
  using namespace touchstone;
  if (argc != 3) {
    std::cout << "usage: train TEXT FOLDER\n";
    return 0;
  }
  try {
    Context context;
    const train::TextSplit text = train::split_documents(train::read_documents(argv[1]), 0.1, 1);
    const std::string_view both[] = {text.training[0], text.validation[0]};
    const std::string tokenizer_json = train::character_tokenizer(both);
    const io::Tokenizer tokenizer = io::Tokenizer::from_json(tokenizer_json);
    const auto training = train::encode_documents(context, tokenizer, text.training, -1);
    const auto validation = train::encode_documents(context, tokenizer, text.validation, -1);

    io::ModelDescription model;  // a Llama of two layers
    model.width = 64;
    model.ffn_width = 192;
    model.heads = model.kv_heads = 2;
    model.head_size = model.rope.dims = 32;
    model.attention_scale = 0.17677669529663687;  // 1 / sqrt(32)
    model.vocabulary = static_cast<std::int64_t>(tokenizer.id_end());
    model.context = 64;
    model.layers.resize(2);
    model.tied_head = true;

    train::TrainingOptions options{.steps = 200, .rows = 8, .length = 64, .learning_rate = 3e-3};
    options.ternary = TernaryRule{};  // groups of 128, the mean as scale
    train::Trainer trainer(context, model, options, training, validation);
    trainer.initialize();
    while (trainer.steps_done() < options.steps) {
      const train::StepReport step = trainer.step();
      if (!step.finite) return 1;  // the weights are those of the step before
      if (step.step % 50 == 0) std::cout << step.step << ": loss " << step.loss << '\n';
    }
    std::cout << "validation: " << trainer.evaluate().loss << '\n';
    trainer.write_model(argv[2], tokenizer_json);  // touchstone generate -m FOLDER -p ...
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
// [snippet]
