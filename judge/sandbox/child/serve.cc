// Contender code shares this process, so nothing in here is worth lying about: no answers, no
// clock, no verdict, only the calls themselves.
#include "serve.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <vector>

#include "judge_link.h"

namespace touchstone::judge::child {
namespace {

using namespace protocol;

// The symbols of the ABI shim that was compiled for the task (judge/contender/abi_shim.h).
struct Library {
  void (*bind)(int32_t function, void* address) = nullptr;
  int (*call)(int32_t function, const int64_t* scalars, void* const* pointers, void** handle,
              int64_t* returned, char* note, int64_t note_bytes) = nullptr;
  // Devices only: null where buffers are passed as they are.
  int (*device_start)(char* note, int64_t note_bytes) = nullptr;
  int (*device_upload)(int32_t slot, const void* bytes, int64_t count, void** device) = nullptr;
  int (*device_download)(int32_t slot, void* bytes, int64_t count) = nullptr;
  int (*device_finish)() = nullptr;
  // Sanitized builds only.
  void (*poison)(const volatile void*, size_t) = nullptr;
  void (*unpoison)(const volatile void*, size_t) = nullptr;
};

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
}

void* open_library(const char* path, JudgeLink& link) {
  // Bound at once, so that a missing symbol is an error now and not in the middle of a call.
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) link.note(kStartFailed, dlerror());
  return library;
}

bool load(void* shim, int count, char** words, JudgeLink& link, Library& library) {
  void* contender = open_library(words[1], link);
  if (contender == nullptr) return false;
  find(shim, "touchstone_bind", library.bind);
  find(shim, "touchstone_call", library.call);
  find(shim, "touchstone_device_start", library.device_start);
  find(shim, "touchstone_device_upload", library.device_upload);
  find(shim, "touchstone_device_download", library.device_download);
  find(shim, "touchstone_device_finish", library.device_finish);
  find(RTLD_DEFAULT, "__asan_poison_memory_region", library.poison);
  find(RTLD_DEFAULT, "__asan_unpoison_memory_region", library.unpoison);
  for (int i = 2; i < count; ++i) {
    void* address = strcmp(words[i], "-") == 0 ? nullptr : dlsym(contender, words[i]);
    if (address == nullptr && strcmp(words[i], "-") != 0) {
      link.note(kStartFailed, dlerror());
      return false;
    }
    library.bind(i - 2, address);
  }
  AdapterHeap adapter;
  find(contender, "touchstone_adapter_held", adapter.held);
  find(contender, "touchstone_adapter_most", adapter.most);
  find(contender, "touchstone_adapter_forget", adapter.forget);
  if (adapter.held != nullptr && adapter.most != nullptr) link.watch_adapter(adapter);
  if (library.device_start != nullptr) {
    char note[256] = "";
    if (library.device_start(note, sizeof note) != 0) {
      link.note(kDeviceFailed, note);
      return false;
    }
  }
  return true;
}

class Server {
 public:
  Server(JudgeLink& link, Library library) : link_(link), library_(library) {}

  void run() {
    link_.control().outcome = kReturned;
    link_.acknowledge();
    while (true) {
      const uint32_t command = link_.wait();
      if (command != kFetch) retire();
      switch (command) {
        case kMap:
          map();
          link_.acknowledge();
          break;
        case kMapAndCall:
          if (map()) call();
          break;
        case kMapState:
          if (!link_.map_state()) link_.note(kStartFailed, "no room to map a state");
          link_.acknowledge();
          break;
        case kCall:
          call();
          break;
        case kFetch:
          fetch();
          link_.acknowledge();
          break;
        case kReset:
          unfence();
          link_.reset();
          handles_.clear();
          device_states_.clear();
          link_.acknowledge();
          break;
        default:
          _exit(0);
      }
    }
  }

 private:
  // Arrays belong to the caller: who keeps a pointer beyond its call finds nothing there.
  void retire() {
    if (link_.retire()) unfence();
  }

  bool map() {
    if (!link_.map()) {
      link_.note(kStartFailed, "no room to map the buffers");
      return false;
    }
    fence();
    return true;
  }

  // What lies between a tensor and its guard page is poison to AddressSanitizer too.
  void fence() {
    if (library_.poison == nullptr) return;
    const Control& c = link_.control();
    for (uint32_t i = 0; i < c.buffer_count; ++i) {
      const Buffer& b = c.buffers[i];
      if (b.mapped_bytes == 0) continue;
      uint8_t* pages = link_.pages(i);
      library_.poison(pages, b.data_offset);
      const uint64_t end = b.data_offset + b.data_bytes;
      library_.poison(pages + end, b.mapped_bytes - end);
      fenced_.emplace_back(pages, b.mapped_bytes);
    }
  }

  void unfence() {
    for (const auto& [pages, bytes] : fenced_) library_.unpoison(pages, bytes);
    fenced_.clear();
  }

  // The arguments of the call in the control block; uploads what a device needs.
  bool gather(std::vector<void*>& pointers) {
    const Control& c = link_.control();
    for (uint32_t i = 0; i < c.pointer_count && i < kMaxPointers; ++i) {
      const Pointer& p = c.pointers[i];
      void* pointer = nullptr;
      if (p.kind == kBufferPointer) {
        pointer = link_.data(p.buffer);
        if (library_.device_upload != nullptr && !upload(p.buffer, pointer)) return false;
      } else if (p.kind == kStatePointer) {
        pointer = link_.state(c.state);
        if (library_.device_upload != nullptr && !upload_state(c.state, pointer)) return false;
      } else {
        const auto found = handles_.find(c.state);
        pointer = found == handles_.end() ? nullptr : found->second;
      }
      pointers.push_back(pointer);
    }
    return true;
  }

  // The whole pages travel, so that the judge finds its canaries round the tensor on the way back.
  bool upload(uint32_t buffer, void*& pointer) {
    const Buffer& b = link_.control().buffers[buffer];
    void* device = nullptr;
    if (library_.device_upload(static_cast<int32_t>(buffer), link_.pages(buffer),
                               static_cast<int64_t>(b.mapped_bytes), &device) != 0) {
      link_.note(kDeviceFailed, "could not copy an input to the device");
      return false;
    }
    pointer = static_cast<uint8_t*>(device) + b.data_offset;
    return true;
  }

  bool upload_state(int32_t number, void*& pointer) {
    const Buffer* b = link_.state_buffer(number);
    if (b == nullptr) return true;
    if (device_states_.contains(number)) {
      pointer = device_states_[number];
      return true;
    }
    void* device = nullptr;
    if (library_.device_upload(kMaxBuffers + number,
                               static_cast<uint8_t*>(pointer) - b->data_offset,
                               static_cast<int64_t>(b->mapped_bytes), &device) != 0) {
      link_.note(kDeviceFailed, "no room for a state on the device");
      return false;
    }
    device_states_[number] = pointer = static_cast<uint8_t*>(device) + b->data_offset;
    return true;
  }

  void call() {
    Control& c = link_.control();
    std::vector<void*> pointers;
    pointers.reserve(kMaxPointers);
    char note[sizeof c.note] = "";
    int64_t returned = 0;
    void* handle = nullptr;
    c.outcome = kReturned;
    const int32_t function = c.function;
    const uint32_t returns = c.returns;
    int64_t scalars[kMaxScalars];
    memcpy(scalars, c.scalars, sizeof scalars);
    if (!gather(pointers)) {
      link_.acknowledge();
      link_.finish();
      return;
    }
    link_.wait_for_go();
    const int threw =
        library_.call(function, scalars, pointers.data(), &handle, &returned, note, sizeof note);
    const int device = library_.device_finish == nullptr ? 0 : library_.device_finish();
    if (threw != 0) {
      link_.note(kThrew, note);
    } else if (device != 0) {
      link_.note(kDeviceFailed, "the device reported a failure after the call");
    } else if (returns == kHandle) {
      handles_[c.state] = handle;
      returned = handle == nullptr ? 1 : 0;
    }
    c.returned = returned;
    link_.finish();
  }

  // Brings everything back, inputs too: the judge looks whether they are what they were.
  void fetch() {
    if (library_.device_download == nullptr) return;
    Control& c = link_.control();
    for (uint32_t i = 0; i < c.buffer_count; ++i) {
      const Buffer& b = c.buffers[i];
      if (b.kind == kInput || b.mapped_bytes == 0) continue;
      // Some outputs are echoes of inputs.
      const int32_t slot = static_cast<int32_t>(b.echo_of != 0 ? b.echo_of - 1 : i);
      if (library_.device_download(slot, link_.pages(i), static_cast<int64_t>(b.mapped_bytes)) !=
          0) {
        link_.note(kDeviceFailed, "could not copy an output from the device");
      }
    }
  }

  JudgeLink& link_;
  Library library_;
  std::map<int32_t, void*> handles_;
  std::map<int32_t, void*> device_states_;
  std::vector<std::pair<uint8_t*, uint64_t>> fenced_;
};

}  // namespace

int serve(int count, char** words) {
  JudgeLink* link = JudgeLink::open();
  if (link == nullptr) return 125;
  link->wait();
  // What every contender is linked with is not its own memory.
  dlopen("libgomp.so.1", RTLD_NOW | RTLD_LOCAL);
  void* shim = open_library(words[0], *link);
  link->acknowledge();
  link->wait();
  Library library;
  if (shim == nullptr || !load(shim, count, words, *link, library)) {
    link->acknowledge();
    return 1;
  }
  Server(*link, library).run();
  return 0;
}

}  // namespace touchstone::judge::child
