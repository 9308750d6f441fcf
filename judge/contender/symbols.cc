#include "judge/contender/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "judge/sandbox/read_file.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr std::size_t kMaxSymbols = 200000;
constexpr std::size_t kLongestName = 512;

class Elf {
 public:
  Elf(std::string bytes, std::string name) : bytes_(std::move(bytes)), name_(std::move(name)) {}

  // A struct at `offset`, copied out.
  template <class T>
  T at(uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) fail("cut short");
    T value;
    memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }

  std::string text(const Elf64_Shdr& table, uint64_t offset) const {
    if (offset >= table.sh_size) fail("a name outside its table");
    std::string result;
    for (uint64_t i = table.sh_offset + offset; result.size() < kLongestName; ++i) {
      const char c = at<char>(i);
      if (c == '\0') return result;
      result += c;
    }
    return {};  // too long to be a name of ours
  }

  [[noreturn]] void fail(const char* what) const {
    throw CorruptData(fmt::format("{}: not a shared library of this machine: {}", name_, what));
  }

 private:
  std::string bytes_;
  std::string name_;
};

#if defined(__x86_64__)
constexpr Elf64_Half kMachine = EM_X86_64;
#else
constexpr Elf64_Half kMachine = EM_AARCH64;
#endif

// "a::b(int, float*)" -> b and 2
void read_demangled(const std::string& text, Symbol& symbol) {
  const std::size_t open = text.find('(');
  if (open == std::string::npos) return;
  std::string name = text.substr(0, open);
  const std::size_t colon = name.rfind("::");
  if (colon != std::string::npos) name = name.substr(colon + 2);
  symbol.plain = name;
  const std::size_t close = text.rfind(')');
  int depth = 0;
  int commas = 0;
  for (std::size_t i = open + 1; i < close; ++i) {
    if (text[i] == '<' || text[i] == '(') ++depth;
    if (text[i] == '>' || text[i] == ')') --depth;
    if (text[i] == ',' && depth == 0) ++commas;
  }
  symbol.arguments = close == open + 1 ? 0 : commas + 1;
}

Symbol make_symbol(const std::string& name) {
  Symbol symbol{.name = name, .plain = name};
  if (!name.starts_with("_Z")) return symbol;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  if (status == 0 && demangled) read_demangled(demangled.get(), symbol);
  return symbol;
}

}  // namespace

std::vector<Symbol> exported_functions(const std::filesystem::path& library) {
  const Elf elf(read_file(library, int64_t{512} << 20), library.filename().string());
  const auto header = elf.at<Elf64_Ehdr>(0);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) elf.fail("no ELF file");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    elf.fail("not 64 bits, little endian");
  }
  if (header.e_type != ET_DYN) elf.fail("no shared object");
  if (header.e_machine != kMachine) elf.fail("for another processor");
  if (header.e_shentsize != sizeof(Elf64_Shdr)) elf.fail("odd section headers");
  std::vector<Symbol> symbols;
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    const auto section = elf.at<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_DYNSYM) continue;
    if (section.sh_link >= header.e_shnum) elf.fail("no names for its symbols");
    const auto names =
        elf.at<Elf64_Shdr>(header.e_shoff + uint64_t{section.sh_link} * sizeof(Elf64_Shdr));
    const uint64_t count = section.sh_size / sizeof(Elf64_Sym);
    if (count > kMaxSymbols) elf.fail("too many symbols");
    for (uint64_t k = 0; k < count; ++k) {
      const auto entry = elf.at<Elf64_Sym>(section.sh_offset + k * sizeof(Elf64_Sym));
      const bool function =
          ELF64_ST_TYPE(entry.st_info) == STT_FUNC || ELF64_ST_TYPE(entry.st_info) == STT_GNU_IFUNC;
      if (!function || entry.st_shndx == SHN_UNDEF) continue;
      std::string name = elf.text(names, entry.st_name);
      if (!name.empty()) symbols.push_back(make_symbol(std::move(name)));
    }
  }
  return symbols;
}

}  // namespace touchstone::judge
