// The defaults of draft sources, and the union of several sources.
#include "touchstone/decode/draft_source.h"

#include <utility>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {

DraftSource::~DraftSource() = default;
std::int64_t DraftSource::vocabulary() const { return 0; }
std::span<const std::int32_t> DraftSource::hidden_layers() const { return {}; }
void DraftSource::observe(Context& /*context*/, const ObservedRows& /*rows*/) {}
void DraftSource::copy(Context& /*context*/, std::int64_t /*from*/, std::int64_t /*to*/) {}

namespace {

class MergedSource final : public DraftSource {
 public:
  explicit MergedSource(std::vector<std::unique_ptr<DraftSource>> sources)
      : sources_(std::move(sources)) {
    for (const auto& source : sources_) {
      const std::int64_t own = source->vocabulary();
      if (own != 0 && vocabulary_ != 0 && own != vocabulary_) {
        throw InvalidArgument("merged source: the vocabularies of the sources differ");
      }
      if (own != 0) vocabulary_ = own;
      if (source->hidden_layers().empty()) continue;
      if (observer_ != nullptr) {
        throw InvalidArgument("merged source: two sources read hidden states, expected one");
      }
      observer_ = source.get();
    }
  }
  std::span<const std::int32_t> hidden_layers() const override {
    return observer_ == nullptr ? std::span<const std::int32_t>() : observer_->hidden_layers();
  }
  void observe(Context& context, const ObservedRows& rows) override {
    observer_->observe(context, rows);
  }
  void copy(Context& context, std::int64_t from, std::int64_t to) override {
    for (const auto& source : sources_) source->copy(context, from, to);
  }
  std::string name() const override {
    std::string all;
    for (const auto& source : sources_) {
      if (!all.empty()) all += '+';
      all += source->name();
    }
    return all;
  }
  std::int64_t vocabulary() const override { return vocabulary_; }
  void draft(Context& context, std::span<DraftRequest> requests) override {
    std::vector<std::vector<TokenTree>> found(requests.size());
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      std::vector<DraftRequest> copies(requests.begin(), requests.end());
      sources_[s]->draft(context, copies);
      for (std::size_t r = 0; r < requests.size(); ++r) {
        TokenTree& named = found[r].emplace_back();
        for (const TreeNode& node : copies[r].draft.tree.nodes()) {
          named.add({.parent = node.parent,
                     .token = node.token,
                     .log_probability = node.log_probability,
                     .source = static_cast<std::int32_t>(s)});
        }
      }
    }
    for (std::size_t r = 0; r < requests.size(); ++r) {
      std::vector<const TokenTree*> trees;
      for (const TokenTree& tree : found[r]) trees.push_back(&tree);
      requests[r].draft = {.tree = merge_trees(trees, requests[r].limits)};
    }
  }
  void forget(std::int64_t id) override {
    for (const auto& source : sources_) source->forget(id);
  }

 private:
  std::vector<std::unique_ptr<DraftSource>> sources_;
  DraftSource* observer_ = nullptr;  // of hidden states
  std::int64_t vocabulary_ = 0;
};

}  // namespace

std::unique_ptr<DraftSource> merged_source(std::vector<std::unique_ptr<DraftSource>> sources) {
  return std::make_unique<MergedSource>(std::move(sources));
}

}  // namespace touchstone::inline v0::decode
