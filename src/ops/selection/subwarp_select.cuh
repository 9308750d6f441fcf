// Subwarp selection: 1 to 32 lanes share a short row and find its eight largest tokens.
//
// Comparisons limit these rows, not memory. A row is cut into groups of four consecutive tokens.
// The eight largest tokens lie in the eight groups with the largest maxima (of equal maxima the
// earlier group has the earlier token), so group maxima are ranked first and then the tokens of
// eight groups.
//
// Lists are merged across lanes in halves: after the first merge the even lane of a pair has the
// larger four of the eight keys and the odd lane the others, which is half the comparisons of full
// lists.
#pragma once

#include "ops/selection/subwarp_row.cuh"

namespace touchstone::selection {

template <class K>
__device__ K shuffle_xor(K key, int offset) {
  return __shfl_xor_sync(~0U, key, offset);
}

// Consecutive output slots.
template <int kLaneSlots>
struct SelectedSlots {
  float value[kLaneSlots];
  std::int32_t token[kLaneSlots];
};

__device__ inline float largest_of(const float (&v)[kGroup]) {
  return fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
}

template <class T, int kLanes, int kChunks>
__device__ __noinline__ SelectedSlots<2> select_exact(const SubwarpParams& params, int row,
                                                      int lane);

// The lanes that share one row. `Row` holds its values.
template <class Row, int kLanes, int kChunks>
struct ThreadGroup {
  using K = typename Row::K;
  using Source = typename Row::Source;
  // Output slots per lane; beyond four lanes the others hold copies.
  static constexpr int kLaneSlots = kLanes >= 4 ? 2 : kListSize / kLanes;
  static constexpr bool kRankGroups = kLanes * kChunks >= 16;
  static constexpr int kPicks = kLanes == 2 ? 4 : 2;  // groups per lane, of the eight largest

  int lane;  // within the group

  __device__ int first_slot() const {
    if constexpr (kLanes == 1) return 0;
    return kLanes == 2 ? 4 * lane : 4 * (lane & 1) + (lane & 2);
  }
  __device__ bool writes() const { return lane < 4; }

  // Merges the sorted lists of two lanes: four sorted keys of the largest eight per lane.
  __device__ void share_in_pair(const K (&list)[kListSize], K (&half)[4]) const {
    K best[kListSize];
#pragma unroll
    for (int i = 0; i < kListSize; ++i) {
      best[i] = max_key(list[i], shuffle_xor(list[kListSize - 1 - i], 1));
    }
    // The lanes see this bitonic sequence in opposite directions, which pairs the same keys.
#pragma unroll
    for (int i = 0; i < 4; ++i) half[i] = select_one((lane & 1) == 0, best[i], best[i + 4]);
    sort_bitonic_four(half);
  }

  // Merges two pairs of lanes `offset` apart: four keys per lane, bitonic.
  __device__ void merge_pairs(K (&half)[4], int offset) const {
    K best[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) best[i] = max_key(half[i], shuffle_xor(half[3 - i], offset ^ 1));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      half[i] = select_one((lane & 1) == 0, best[i], shuffle_xor(best[i], 1));
    }
  }

  // The eight largest groups of a lane, sorted.
  __device__ void own_groups(const Row& row, K (&list)[kListSize]) const {
    row.group_keys(0, lane, list);
    sort_eight(list);
    if constexpr (kChunks > 4) {
      K more[kListSize];
      row.group_keys(4, lane, more);
      sort_eight(more);
      keep_best(list, more);
    }
  }

  // Each lane of a pair or a quad gets its share of the eight largest groups, and the largest of
  // all.
  __device__ void rank_groups(const Row& row, K (&picked)[kPicks], K& best) const {
    K list[kListSize];
    own_groups(row, list);
    // The last merge needs the set only, not its order: the even lane of a pair holds the larger
    // half in the order in which the odd lane holds the other half.
    if constexpr (kLanes == 2) {
#pragma unroll
      for (int i = 0; i < kPicks; ++i) {
        picked[i] = max_key(list[i], shuffle_xor(list[kListSize - 1 - i], 1));
      }
      best = max_key(list[0], shuffle_xor(list[0], 1));
    } else {
      K half[4];
      share_in_pair(list, half);
#pragma unroll
      for (int offset = 4; offset < kLanes; offset *= 2) {
        merge_pairs(half, offset);
        sort_bitonic_four(half);
      }
      // Pairs the even lane of one pair with the odd lane of the other.
      picked[0] = max_key(half[0], shuffle_xor(half[3], 3));
      picked[1] = max_key(half[1], shuffle_xor(half[2], 3));
      best = max_key(half[0], shuffle_xor(half[0], 2));
      best = __shfl_sync(~0U, best, 0, 4);
    }
  }

  // Merges the sorted lists of four lanes: two sorted keys of the largest eight per lane.
  __device__ void share_in_four(const K (&list)[kListSize], K (&mine)[2]) const {
    K half[4];
    share_in_pair(list, half);
    merge_pairs(half, 2);
    mine[0] = select_one((lane & 2) == 0, half[0], half[2]);
    mine[1] = select_one((lane & 2) == 0, half[1], half[3]);
    order(mine[0], mine[1]);
  }

  // The eight largest tokens of a row with few groups.
  __device__ void best_of_chunks(const Row& row, K (&list)[kListSize]) const {
    row.chunk_keys(0, lane, list);
    sort_eight(list);
#pragma unroll
    for (int c = 1; c < kChunks; ++c) {
      K more[kListSize];
      row.chunk_keys(c, lane, more);
      sort_eight(more);
      keep_best(list, more);
    }
  }

  // This lane's slots and the largest value of the row.
  __device__ void select(const Row& row, const Source& source, SelectedSlots<kLaneSlots>& selected,
                         float& largest) const {
    if constexpr (Row::kPrefixes) {
      select_by_prefixes(row, source, selected, largest);
    } else {
      K mine[kLaneSlots];
      select(row, source, mine, largest);
#pragma unroll
      for (int j = 0; j < kLaneSlots; ++j) {
        selected.value[j] = Row::value_of(mine[j]);
        selected.token[j] = static_cast<std::int32_t>(id_of(mine[j]));
      }
    }
  }

  __device__ void select(const Row& row, const Source& source, K (&mine)[kLaneSlots],
                         float& largest) const {
    if constexpr (kRankGroups) {
      K picked[kPicks];
      K best;
      rank_groups(row, picked, best);
      largest = Row::value_of(best);
      K lists[kPicks / 2][kListSize];
      Row::group_token_keys(source, picked, lists);
      sort_eight(lists[0]);
      if constexpr (kLanes == 2) {
        sort_eight(lists[1]);
        keep_best(lists[0], lists[1]);
        share_in_pair(lists[0], mine);
      } else {
        share_in_four(lists[0], mine);
      }
    } else {
      K list[kListSize];
      best_of_chunks(row, list);
      if constexpr (kLanes == 1) {
#pragma unroll
        for (int i = 0; i < kListSize; ++i) mine[i] = list[i];
        largest = Row::value_of(list[0]);
      } else {
        share_in_pair(list, mine);
        largest = Row::value_of(__shfl_sync(~0U, mine[0], 0, 2));
      }
    }
  }

  // Selects by truncated keys, then checks the full values. If a token may be missing or misplaced,
  // the warp repeats the selection with 64-bit keys.
  __device__ void select_by_prefixes(const Row& row, const Source& source,
                                     SelectedSlots<kLaneSlots>& selected, float& largest) const {
    K picked[2];
    K best;
    rank_groups(row, picked, best);
    float found[2][kGroup];
    K list[kListSize];
    Row::group_token_keys(source, picked, found, list);
    sort_eight(list);
    K mine[2];
    share_in_four(list, mine);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      selected.token[j] = Row::token_of(mine[j]);
      selected.value[j] = source.value(selected.token[j]);
    }
    if (__any_sync(~0U, needs_exact_keys(row, found, selected))) {
      selected =
          select_exact<typename Row::Logit, kLanes, kChunks>(source.params, source.row, lane);
    }
    largest = __shfl_sync(~0U, selected.value[0], 0, 4);
  }

  // Whether truncated keys may have missed or misplaced a token. Equal values are ordered by token,
  // so only values that differ in their dropped bits matter: a value above the last slot that was
  // not selected, or whose group was not, or two slots out of order. (A group equal to the last
  // slot can only be displaced by a smaller one, whose token would then precede the last slot.)
  __device__ bool needs_exact_keys(const Row& row, const float (&found)[2][kGroup],
                                   const SelectedSlots<kLaneSlots>& selected) const {
    const float last = __shfl_sync(~0U, selected.value[1], 3, 4);
    int missed = row.groups_above(last);
    if (writes()) {
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        missed -= largest_of(found[g]) > last ? 1 : 0;
        missed -= selected.value[g] > last ? 1 : 0;
#pragma unroll
        for (int i = 0; i < kGroup; ++i) missed += found[g][i] > last ? 1 : 0;
      }
    }
    // Slot order over lanes: 0, 2, 1, 3.
    const int before = (lane & 1) != 0 ? 2 - (lane >> 1 & 1) : 0;
    const float previous = __shfl_sync(~0U, selected.value[1], before, 4);
    return sum(missed) != 0 || selected.value[0] < selected.value[1] ||
           ((lane & 3) != 0 && previous < selected.value[0]);
  }

  template <class Part>
  __device__ Part sum(Part part) const {
#pragma unroll
    for (int offset = 1; offset < kLanes; offset *= 2) part += shuffle_xor(part, offset);
    return part;
  }
  // Sum of 2^(v * scale - reference).
  __device__ float sum_of_weights(const Row& row, float scale, float reference) const {
    float parts[2] = {0, 0};  // even and odd tokens
    int i = 0;
    row.each_value([&](float v) { parts[i++ & 1] += exp2_fast(fmaf(v, scale, -reference)); });
    return sum(parts[0] + parts[1]);
  }

  // The values of all eight slots, in every lane.
  __device__ void all_values(const SelectedSlots<kLaneSlots>& selected,
                             float (&all)[kListSize]) const {
#pragma unroll
    for (int i = 0; i < kListSize; ++i) {
      if constexpr (kLanes == 1) {
        all[i] = selected.value[i];
      } else {
        all[i] = __shfl_sync(~0U, selected.value[i % kLaneSlots], owner(i), kLanes);
      }
    }
  }
  // The key at a slot, in every lane.
  __device__ Key key_at(const SelectedSlots<kLaneSlots>& selected, int source) const {
    SelectedSlots<kLaneSlots> left = selected;  // dynamic indexing would use local memory
#pragma unroll
    for (int bit = 1; bit < kLaneSlots; bit *= 2) {
#pragma unroll
      for (int j = 0; j < kLaneSlots; j += 2 * bit) {
        if ((source & bit) == 0) continue;
        left.value[j] = left.value[j + bit];
        left.token[j] = left.token[j + bit];
      }
    }
    const float value = __shfl_sync(~0U, left.value[0], owner(source), kLanes);
    const std::int32_t token = __shfl_sync(~0U, left.token[0], owner(source), kLanes);
    return key_of(value, static_cast<std::uint32_t>(token));
  }
  // The lane that holds a slot.
  __device__ static int owner(int source) {
    if constexpr (kLanes == 1) return 0;
    return kLanes == 2 ? source / 4 : source / 4 + (source & 2);
  }
};

// Rare, hence __noinline__.
template <class T, int kLanes, int kChunks>
__device__ SelectedSlots<2> select_exact(const SubwarpParams& params, int row, int lane) {
  using Exact = WideRow<T, kLanes, kChunks>;
  const GlobalRow<T> source(params, row);
  Exact values;
  values.load(source, lane);
  SelectedSlots<2> selected;
  float largest;
  ThreadGroup<Exact, kLanes, kChunks>{lane}.select(values, source, selected, largest);
  return selected;
}

}  // namespace touchstone::selection
