// touchstone-child: what contender code runs in. Holds nothing of the judge and nothing of the
// library: no answers, no oracle, no clock.
#include <cstdio>
#include <cstring>

#include "jail.h"
#include "serve.h"

int main(int argc, char** argv) {
  namespace child = touchstone::judge::child;
  if (argc == 2 && strcmp(argv[1], "jail") == 0) return child::jail();
  if (argc == 2 && strcmp(argv[1], "nothing") == 0) return 0;
  if (argc > 3 && strcmp(argv[1], "serve") == 0) return child::serve(argc - 2, argv + 2);
  fputs("touchstone-child: started by touchstone judge, not by hand\n", stderr);
  return 2;
}
