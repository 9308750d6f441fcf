// Strengths and weaknesses as sentences. Each is assembled from evidence and names it: no sentence
// without an id.
#pragma once

#include <string>
#include <vector>

#include "judge/report/record.h"

namespace touchstone::judge {

struct Remark {
  std::string text;                   // one sentence
  std::vector<std::string> evidence;  // ids of cases, speeds, findings, claims; "memory", "build"
};

struct Remarks {
  std::vector<Remark> strengths;
  std::vector<Remark> weaknesses;
};

Remarks remarks(const Record& record);

// "The sentence. (c1, c2)"
std::string remark_text(const Remark& remark);

}  // namespace touchstone::judge
