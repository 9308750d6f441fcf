// The lanes that share a short row.
#pragma once

#include "ops/softmax_topk/topk_short_row.cuh"

namespace touchstone::topk {

template <class K>
__device__ K from_lane_xor(K key, int offset) {
  return __shfl_xor_sync(~0U, key, offset);
}

// Neighboring places of a row.
template <int kPlaces>
struct Chosen {
  float value[kPlaces];
  std::int32_t token[kPlaces];
};

__device__ inline float largest_of(const float (&v)[kGroup]) {
  return fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
}

template <class T, int kLanes, int kChunks>
__device__ __noinline__ Chosen<2> choose_exactly(const ShortArgs& args, int row, int lane);

// The lanes that share one row, and how they find its best tokens. `Row` holds its values.
template <class Row, int kLanes, int kChunks>
struct Team {
  using K = typename Row::K;
  using Place = typename Row::Place;
  // Of the eight places a lane ends up with these; beyond four lanes the others have copies.
  static constexpr int kPlaces = kLanes >= 4 ? 2 : kList / kLanes;
  static constexpr bool kRankGroups = kLanes * kChunks >= 16;
  static constexpr int kPicks = kLanes == 2 ? 4 : 2;  // of the eight best groups

  int lane;  // within the row

  __device__ int first_place() const {
    if constexpr (kLanes == 1) return 0;
    return kLanes == 2 ? 4 * lane : 4 * (lane & 1) + (lane & 2);
  }
  __device__ bool writes() const { return lane < 4; }

  // Two lanes' sorted eight become their best eight: four sorted keys in each lane.
  __device__ void share_in_pair(const K (&list)[kList], K (&half)[4]) const {
    K best[kList];
#pragma unroll
    for (int i = 0; i < kList; ++i) {
      best[i] = larger(list[i], from_lane_xor(list[kList - 1 - i], 1));
    }
    // One lane has this bitonic sequence reversed, which pairs the same keys.
#pragma unroll
    for (int i = 0; i < 4; ++i) half[i] = one_of((lane & 1) == 0, best[i], best[i + 4]);
    sort_bitonic_four(half);
  }

  // The best eight of two pairs of lanes, `offset` lanes apart: four keys in each, bitonic.
  __device__ void merge_pairs(K (&half)[4], int offset) const {
    K best[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) best[i] = larger(half[i], from_lane_xor(half[3 - i], offset ^ 1));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      half[i] = one_of((lane & 1) == 0, best[i], from_lane_xor(best[i], 1));
    }
  }

  // The best eight groups of a lane, sorted.
  __device__ void own_groups(const Row& row, K (&list)[kList]) const {
    row.group_keys(0, lane, list);
    sort_eight(list);
    if constexpr (kChunks > 4) {
      K more[kList];
      row.group_keys(4, lane, more);
      sort_eight(more);
      keep_best(list, more);
    }
  }

  // For every lane of a pair or a quad its share of the eight best groups, and the best of all.
  __device__ void rank_groups(const Row& row, K (&picked)[kPicks], K& best) const {
    K list[kList];
    own_groups(row, list);
    // Of the last merge only the set counts. The even lane of a pair has the better half of the
    // pair's best in the order in which the odd lane has the other half, so that the first of each
    // are all of them.
    if constexpr (kLanes == 2) {
#pragma unroll
      for (int i = 0; i < kPicks; ++i) {
        picked[i] = larger(list[i], from_lane_xor(list[kList - 1 - i], 1));
      }
      best = larger(list[0], from_lane_xor(list[0], 1));
    } else {
      K half[4];
      share_in_pair(list, half);
#pragma unroll
      for (int offset = 4; offset < kLanes; offset *= 2) {
        merge_pairs(half, offset);
        sort_bitonic_four(half);
      }
      // The even lane of one pair and the odd lane of the other.
      picked[0] = larger(half[0], from_lane_xor(half[3], 3));
      picked[1] = larger(half[1], from_lane_xor(half[2], 3));
      best = larger(half[0], from_lane_xor(half[0], 2));
      best = __shfl_sync(~0U, best, 0, 4);
    }
  }

  // Four lanes' sorted eight become their best eight: two sorted keys in each lane.
  __device__ void share_in_four(const K (&list)[kList], K (&mine)[2]) const {
    K half[4];
    share_in_pair(list, half);
    merge_pairs(half, 2);
    mine[0] = one_of((lane & 2) == 0, half[0], half[2]);
    mine[1] = one_of((lane & 2) == 0, half[1], half[3]);
    order(mine[0], mine[1]);
  }

  // The best eight of a row that has not many groups.
  __device__ void best_of_chunks(const Row& row, K (&list)[kList]) const {
    row.chunk_keys(0, lane, list);
    sort_eight(list);
#pragma unroll
    for (int c = 1; c < kChunks; ++c) {
      K more[kList];
      row.chunk_keys(c, lane, more);
      sort_eight(more);
      keep_best(list, more);
    }
  }

  // This lane's places and the value of the row's best token.
  __device__ void choose(const Row& row, const Place& place, Chosen<kPlaces>& chosen,
                         float& largest) const {
    if constexpr (Row::kPrefixes) {
      choose_by_prefixes(row, place, chosen, largest);
    } else {
      K mine[kPlaces];
      select(row, place, mine, largest);
#pragma unroll
      for (int j = 0; j < kPlaces; ++j) {
        chosen.value[j] = Row::value_of(mine[j]);
        chosen.token[j] = static_cast<std::int32_t>(id_of(mine[j]));
      }
    }
  }

  __device__ void select(const Row& row, const Place& place, K (&mine)[kPlaces],
                         float& largest) const {
    if constexpr (kRankGroups) {
      K picked[kPicks];
      K best;
      rank_groups(row, picked, best);
      largest = Row::value_of(best);
      K lists[kPicks / 2][kList];
      Row::group_token_keys(place, picked, lists);
      sort_eight(lists[0]);
      if constexpr (kLanes == 2) {
        sort_eight(lists[1]);
        keep_best(lists[0], lists[1]);
        share_in_pair(lists[0], mine);
      } else {
        share_in_four(lists[0], mine);
      }
    } else {
      K list[kList];
      best_of_chunks(row, list);
      if constexpr (kLanes == 1) {
#pragma unroll
        for (int i = 0; i < kList; ++i) mine[i] = list[i];
        largest = Row::value_of(list[0]);
      } else {
        share_in_pair(list, mine);
        largest = Row::value_of(__shfl_sync(~0U, mine[0], 0, 2));
      }
    }
  }

  // By keys that have the upper bits of values only, and the values of what they found. Where that
  // may have missed a token, or has two in the wrong order, all is done again by whole keys.
  __device__ void choose_by_prefixes(const Row& row, const Place& place, Chosen<kPlaces>& chosen,
                                     float& largest) const {
    K picked[2];
    K best;
    rank_groups(row, picked, best);
    float found[2][kGroup];
    K list[kList];
    Row::group_token_keys(place, picked, found, list);
    sort_eight(list);
    K mine[2];
    share_in_four(list, mine);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      chosen.token[j] = Row::token_of(mine[j]);
      chosen.value[j] = place.value(chosen.token[j]);
    }
    if (__any_sync(~0U, doubtful(row, found, chosen))) {
      chosen = choose_exactly<typename Row::Logit, kLanes, kChunks>(place.args, place.row, lane);
    }
    largest = __shfl_sync(~0U, chosen.value[0], 0, 4);
  }

  // Whether a token may be missing or in the wrong place. Of equal values the earlier token has the
  // larger key, so that only values which differ in their lower bits are to be feared: one that is
  // above the last place and is none, or whose group was not found, or two in the wrong order. (A
  // group that is equal to the last place can only be kept out by one that is less, whose token
  // would then stand before the last place.)
  __device__ bool doubtful(const Row& row, const float (&found)[2][kGroup],
                           const Chosen<kPlaces>& chosen) const {
    const float last = __shfl_sync(~0U, chosen.value[1], 3, 4);
    int missed = row.groups_above(last);
    if (writes()) {
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        missed -= largest_of(found[g]) > last ? 1 : 0;
        missed -= chosen.value[g] > last ? 1 : 0;
#pragma unroll
        for (int i = 0; i < kGroup; ++i) missed += found[g][i] > last ? 1 : 0;
      }
    }
    // Lanes 0, 2, 1, 3 have the places in order.
    const int before = (lane & 1) != 0 ? 2 - (lane >> 1 & 1) : 0;
    const float previous = __shfl_sync(~0U, chosen.value[1], before, 4);
    return sum(missed) != 0 || chosen.value[0] < chosen.value[1] ||
           ((lane & 3) != 0 && previous < chosen.value[0]);
  }

  template <class Part>
  __device__ Part sum(Part part) const {
#pragma unroll
    for (int offset = 1; offset < kLanes; offset *= 2) part += from_lane_xor(part, offset);
    return part;
  }
  // Of 2^(v * scale - reference).
  __device__ float sum_of_weights(const Row& row, float scale, float reference) const {
    float parts[2] = {0, 0};  // even and odd tokens
    int i = 0;
    row.each_value([&](float v) { parts[i++ & 1] += exp2_fast(fmaf(v, scale, -reference)); });
    return sum(parts[0] + parts[1]);
  }

  // The values of all eight places, in every lane.
  __device__ void all_values(const Chosen<kPlaces>& chosen, float (&all)[kList]) const {
#pragma unroll
    for (int i = 0; i < kList; ++i) {
      if constexpr (kLanes == 1) {
        all[i] = chosen.value[i];
      } else {
        all[i] = __shfl_sync(~0U, chosen.value[i % kPlaces], owner(i), kLanes);
      }
    }
  }
  // The token at a place and its value, in every lane.
  __device__ Key key_at(const Chosen<kPlaces>& chosen, int place) const {
    Chosen<kPlaces> left = chosen;  // an index known at run time would need memory
#pragma unroll
    for (int bit = 1; bit < kPlaces; bit *= 2) {
#pragma unroll
      for (int j = 0; j < kPlaces; j += 2 * bit) {
        if ((place & bit) == 0) continue;
        left.value[j] = left.value[j + bit];
        left.token[j] = left.token[j + bit];
      }
    }
    const float value = __shfl_sync(~0U, left.value[0], owner(place), kLanes);
    const std::int32_t token = __shfl_sync(~0U, left.token[0], owner(place), kLanes);
    return key_of(value, static_cast<std::uint32_t>(token));
  }
  // The lane that has it.
  __device__ static int owner(int place) {
    if constexpr (kLanes == 1) return 0;
    return kLanes == 2 ? place / 4 : place / 4 + (place & 2);
  }
};

// Out of line: rare.
template <class T, int kLanes, int kChunks>
__device__ Chosen<2> choose_exactly(const ShortArgs& args, int row, int lane) {
  using Exact = WideRow<T, kLanes, kChunks>;
  const RowPlace<T> place(args, row);
  Exact values;
  values.load(place, lane);
  Chosen<2> chosen;
  float largest;
  Team<Exact, kLanes, kChunks>{lane}.choose(values, place, chosen, largest);
  return chosen;
}

}  // namespace touchstone::topk
