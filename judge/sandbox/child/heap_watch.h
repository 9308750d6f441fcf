// What a heap of ours can tell. A child has one of them, or none: then these are null.
#pragma once

#include <cstdint>

extern "C" {
// guarded_heap.cc: whether an address is of the heap, in a block or beside one.
__attribute__((weak)) bool touchstone_heap_owns(uint64_t address);
// counted_heap.cc: bytes held now, the most since the last forget, and forget.
__attribute__((weak)) int64_t touchstone_heap_held();
__attribute__((weak)) int64_t touchstone_heap_most();
__attribute__((weak)) void touchstone_heap_forget();
// Large blocks that are made from now on are an adapter's, or no more; what it holds of these now, and
// held when most was held.
__attribute__((weak)) void touchstone_heap_adapter(bool running);
__attribute__((weak)) int64_t touchstone_heap_adapter_held();
__attribute__((weak)) int64_t touchstone_heap_adapter_then();
}
