#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

// free, used, cached; they must sum to the capacity whatever happens.
void expect_counts(const PagePool& pool, std::int64_t free, std::int64_t used,
                   std::int64_t cached) {
  EXPECT_EQ(pool.free_pages(), free);
  EXPECT_EQ(pool.used_pages(), used);
  EXPECT_EQ(pool.cached_pages(), cached);
  EXPECT_EQ(free + used + cached, pool.capacity());
  EXPECT_EQ(pool.find_inconsistency(), "");
}

PageHandle take_one(PagePool& pool) {
  PageHandle page;
  pool.take({&page, 1});
  return page;
}

TEST(PagePool, TakesAllOrNothing) {
  PagePool pool(8);
  std::vector<PageHandle> pages(5);
  pool.take(pages);
  std::set<std::uint32_t> numbers;
  for (const PageHandle page : pages) numbers.insert(page.index);
  EXPECT_EQ(numbers.size(), 5U);
  expect_counts(pool, 3, 5, 0);
  std::vector<PageHandle> more(4);
  EXPECT_THROW(pool.take(more), OutOfMemory);
  expect_counts(pool, 3, 5, 0);
  EXPECT_TRUE(more[0].empty());
  pool.take(std::span(more).first(3));
  expect_counts(pool, 0, 8, 0);
  pool.take({});
  for (const PageHandle page : pages) pool.drop(page);
  expect_counts(pool, 5, 3, 0);
  EXPECT_EQ(pool.peak_used_pages(), 8);
}

TEST(PagePool, CountsReferences) {
  PagePool pool(2);
  const PageHandle page = take_one(pool);
  pool.share(page);
  pool.share(page);
  EXPECT_EQ(pool.references(page), 3);
  pool.drop(page);
  pool.drop(page);
  expect_counts(pool, 1, 1, 0);
  pool.drop(page);
  expect_counts(pool, 2, 0, 0);
}

TEST(PagePool, DropsManyAllOrNothing) {
  PagePool pool(8);
  std::vector<PageHandle> pages(5);
  pool.take(pages);
  pool.keep(pages[1]);
  pool.share(pages[2]);
  pages.insert(pages.begin() + 3, PageHandle{});
  std::vector<PageHandle> wrong = pages;
  wrong.push_back(pages[0]);  // one reference, dropped twice
  EXPECT_THROW(pool.drop(wrong), InvalidArgument);
  wrong = pages;
  wrong.insert(wrong.begin(), pages[1]);  // the same of a page that is kept
  EXPECT_THROW(pool.drop(wrong), InvalidArgument);
  wrong = pages;
  wrong[0].generation += 1;
  EXPECT_THROW(pool.drop(wrong), InvalidArgument);
  expect_counts(pool, 3, 5, 0);
  EXPECT_EQ(pool.references(pages[2]), 2);
  pool.drop(pages);
  expect_counts(pool, 6, 1, 1);
  EXPECT_EQ(pool.oldest_cached(), pages[1]);
  EXPECT_EQ(take_one(pool).index, pages[0].index);  // the last first: the first is on top
  EXPECT_THROW(pool.drop(std::span<const PageHandle>(pages)), InvalidArgument);
}

TEST(PagePool, SharesManyAllOrNothing) {
  PagePool pool(8);
  std::vector<PageHandle> pages(3);
  pool.take(pages);
  pool.keep(pages[1]);
  pool.drop(pages[1]);
  expect_counts(pool, 5, 2, 1);
  std::vector<PageHandle> wrong{pages[0], pages[1], PageHandle{}, pages[2]};
  wrong[3].generation += 1;
  EXPECT_THROW(pool.share(wrong), InvalidArgument);
  expect_counts(pool, 5, 2, 1);
  EXPECT_EQ(pool.references(pages[0]), 1);
  pool.share(std::vector{pages[1], PageHandle{}, pages[0], pages[1]});
  expect_counts(pool, 5, 3, 0);
  EXPECT_EQ(pool.references(pages[1]), 2);
  EXPECT_THROW(pool.share(PageHandle{pages[0].index, pages[0].generation, 0}), InvalidArgument);
  EXPECT_THROW(pool.share(PageHandle{}), InvalidArgument);
  EXPECT_THROW(pool.drop(PageHandle{}), InvalidArgument);
}

TEST(PagePool, DropsAPageAsOftenAsItIsNamed) {
  PagePool pool(4);
  std::vector<PageHandle> pages(2);
  pool.take(pages);
  pool.keep(pages[1]);
  for (const PageHandle page : pages) pool.share(page);
  const std::vector<PageHandle> twice{pages[0], pages[1], pages[0], pages[1]};
  pool.drop(twice);
  expect_counts(pool, 3, 0, 1);
  pool.share(pages[1]);
  pool.drop(std::span(&pages[1], 1));
  expect_counts(pool, 3, 0, 1);
}

TEST(PagePool, RefusesDoubleFreeStaleAndForeignHandles) {
  PagePool pool(4);
  PagePool other(4);
  const PageHandle page = take_one(pool);
  take_one(other);
  pool.drop(page);
  EXPECT_THROW(pool.drop(page), InvalidArgument);
  const PageHandle again = take_one(pool);
  EXPECT_EQ(again.index, page.index);  // same page, another life
  EXPECT_THROW(pool.drop(page), InvalidArgument);
  EXPECT_THROW(pool.share(page), InvalidArgument);
  EXPECT_THROW(pool.keep(page), InvalidArgument);
  EXPECT_THROW(pool.references(page), InvalidArgument);
  EXPECT_THROW(other.drop(again), InvalidArgument);
  EXPECT_THROW(other.share(again), InvalidArgument);
  EXPECT_THROW(pool.drop(PageHandle{}), InvalidArgument);
  EXPECT_THROW(pool.drop({99, 0, again.pool}), InvalidArgument);
  EXPECT_THROW(pool.evict(again), InvalidArgument);  // in use
  expect_counts(pool, 3, 1, 0);
  expect_counts(other, 3, 1, 0);
  EXPECT_EQ(pool.references(again), 1);
}

TEST(PagePool, KeptPagesAreCachedAndEvictedInOrder) {
  PagePool pool(4);
  std::vector<PageHandle> pages(4);
  pool.take(pages);
  EXPECT_TRUE(pool.oldest_cached().empty());
  for (const PageHandle page : pages) pool.keep(page);
  for (const int i : {2, 0, 3}) pool.drop(pages[static_cast<std::size_t>(i)]);
  expect_counts(pool, 0, 1, 3);
  EXPECT_EQ(pool.oldest_cached(), pages[2]);
  EXPECT_THROW(pool.drop(pages[2]), InvalidArgument);  // nobody holds it
  pool.share(pages[2]);                                // in use again
  EXPECT_EQ(pool.oldest_cached(), pages[0]);
  pool.drop(pages[2]);  // and now the youngest
  pool.evict(pages[3]);
  expect_counts(pool, 1, 1, 2);
  EXPECT_THROW(pool.evict(pages[3]), InvalidArgument);
  EXPECT_THROW(pool.share(pages[3]), InvalidArgument);
  pool.evict(pool.oldest_cached());
  EXPECT_EQ(pool.oldest_cached(), pages[2]);
  EXPECT_THROW(pool.evict(pages[1]), InvalidArgument);
  const PageHandle reused = take_one(pool);
  EXPECT_FALSE(pool.kept(reused));
}

TEST(PagePool, RefusesImpossibleCapacities) {
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31}) {
    EXPECT_THROW(PagePool{bad}, InvalidArgument);
  }
}

}  // namespace
}  // namespace touchstone::inline v0::cache
