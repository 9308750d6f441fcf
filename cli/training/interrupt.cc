#include "cli/training/interrupt.h"

namespace touchstone::cli {
namespace {

volatile std::sig_atomic_t caught = 0;
void on_interrupt(int /*signal*/) { caught = 1; }

}  // namespace

InterruptScope::InterruptScope() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &before_);
  sigaction(SIGTERM, &action, &before_term_);
}

InterruptScope::~InterruptScope() {
  sigaction(SIGINT, &before_, nullptr);
  sigaction(SIGTERM, &before_term_, nullptr);
}

bool InterruptScope::interrupted() { return caught != 0; }

}  // namespace touchstone::cli
