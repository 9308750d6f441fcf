// Perplexity and bits per byte of a text, with the cache in two formats: score MODEL TEXT.
#include <touchstone/touchstone.h>

#include <cmath>
#include <iostream>
#include <numbers>
#include <string>

int main(int argc, char** argv) {
  using namespace touchstone;
  if (argc != 3) {
    std::cout << "usage: score MODEL TEXT\n";
    return 0;
  }
  try {
    const std::string text = argv[2];
    const io::Tokenizer tokenizer = io::Tokenizer::from_file(argv[1]);
    const auto tokens = tokenizer.encode(text);
    Context context;
    for (const DType format : {DType::f32, DType::i8}) {
      model::Model model(context, io::ModelFile::open(argv[1]),
                         {.keys = QuantFormat{.dtype = format},
                          .values = QuantFormat{.dtype = format},
                          .max_length = 512});
      const decode::Perplexity result = decode::perplexity(context, model, tokens);
      const auto bytes = static_cast<double>(decode::scored_bytes(tokenizer, tokens, result));
      std::cout << format_name(format) << " cache: perplexity " << result.value() << ", "
                << result.loss() / std::numbers::ln2 / bytes << " bits per byte, over "
                << result.tokens() << " tokens\n";
    }
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
