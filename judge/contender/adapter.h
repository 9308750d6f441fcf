// Functions that were not written for the contract: whether they can be called as they are, and the
// adapter that maps the contract to them, with holes where only a person knows.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "judge/contender/contender.h"
#include "judge/contender/signatures.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {

// A signature that does not match: wrong usage, never a verdict.
class BadSignature : public InvalidArgument {
 public:
  BadSignature(const std::string& what, std::string adapter)
      : InvalidArgument(what), adapter_(std::move(adapter)) {}
  const std::string& adapter() const {
    return adapter_;
  }  // to copy; empty where there is no source

 private:
  std::string adapter_;
};

// Why a function cannot be called by the contract; empty when it can.
std::string signature_mismatch(const TaskCard& card, const Function& function,
                               const Signature& signature, Language language);

// The definitions of a source file, whatever its language.
std::vector<Signature> signatures_in(const std::filesystem::path& file);

// The text of an adapter for `language` from the functions found in `file`. What cannot be mapped by
// name and type is marked HOLE, and the adapter refuses every call until `kFilled` is set.
std::string make_adapter(const TaskCard& card, Language language,
                         const std::vector<Signature>& theirs, const std::string& file);
// adapter.py, adapter.cu or adapter.cc
std::string adapter_name(Language language);

// The exception: `why`, what to do about it, and the adapter from the sources of the contender.
BadSignature bad_signature(const TaskCard& card, const Contender& contender,
                           const std::string& why);

// Throws BadSignature when a bound function is defined in the sources and cannot be called.
void check_signatures(const TaskCard& card, const Contender& contender);

// Writes into `folder`, which must not exist or be empty: a copy of `file`, an adapter with holes
// and contender.json. Returns what was written.
std::vector<std::filesystem::path> deploy_adapter(const std::filesystem::path& folder,
                                                  const std::filesystem::path& file,
                                                  const Task& task);

}  // namespace touchstone::judge
