// The native child alone, for builds of it that differ in what they link.
#include <cstring>

#include "serve.h"

int main(int argc, char** argv) {
  namespace child = touchstone::judge::child;
  return argc > 3 && strcmp(argv[1], "serve") == 0 ? child::serve(argc - 2, argv + 2) : 2;
}
