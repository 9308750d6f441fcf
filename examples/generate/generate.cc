// Continues a prompt, token by token: generate MODEL PROMPT.
// [snippet]
#include <touchstone/touchstone.h>

#include <iostream>

int main(int argc, char** argv) {
  using namespace touchstone;
  if (argc != 3) {
    std::cout << "usage: generate MODEL PROMPT\n";
    return 0;
  }
  try {
    const io::Tokenizer tokenizer = io::Tokenizer::from_file(argv[1]);
    Context context;
    model::Model model(context, io::ModelFile::open(argv[1]), {.max_length = 2048});

    decode::SchedulerOptions options{.tokenizer = &tokenizer};
    for (const std::int64_t token : model.description().eos_tokens) {
      options.eos_tokens.push_back(static_cast<std::int32_t>(token));
    }
    decode::Scheduler scheduler(model, options);
    scheduler.submit(
        {.prompt = tokenizer.encode(argv[2]), .stop = {.max_tokens = 64}},
        [](const decode::TokenEvent& event) { std::cout << event.text << std::flush; });
    while (scheduler.step(context)) {
    }
    std::cout << '\n';
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
// [snippet]
