// Functions that were not written for the contract: whether they can be called as they are, and the
// adapter that maps the contract to them, with holes where only a person knows.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "judge/contender/contender.h"
#include "judge/contender/signatures.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {

// A signature that does not match: wrong usage, never a verdict. The message has the adapter to copy.
class BadSignature : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
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

// ". Put this beside it as adapter.cc ...": the end of a message, with the text of an adapter; empty
// where there is no source to read.
std::string adapter_to_copy(const TaskCard& card, const Contender& contender);

// Throws BadSignature when a bound function is defined in the sources and cannot be called.
void check_signatures(const TaskCard& card, const Contender& contender);

// Writes into `folder`, which must not exist or be empty: a copy of `file`, an adapter with holes
// and contender.json. Returns what was written.
std::vector<std::filesystem::path> deploy_adapter(const std::filesystem::path& folder,
                                                  const std::filesystem::path& file,
                                                  const Task& task);

}  // namespace touchstone::judge
