#include "csrc/symbol_table.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string_view>

namespace gradc {
namespace {

// A file, read where it lies; empty where it cannot be.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (file >= 0 && fstat(file, &facts) == 0 && facts.st_size > 0) {
      void* mapped = mmap(nullptr, facts.st_size, PROT_READ, MAP_PRIVATE, file, 0);
      bytes_ = mapped == MAP_FAILED ? std::string_view() : std::string_view(static_cast<const char*>(mapped), facts.st_size);
    }
    if (file >= 0) {
      close(file);
    }
  }
  ~MappedFile() {
    if (!bytes_.empty()) {
      munmap(const_cast<char*>(bytes_.data()), bytes_.size());
    }
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // `count` of a kind from a place on; null if the file ends before.
  template <class T>
  const T* at(size_t place, size_t count = 1) const {
    const bool is_inside = place <= bytes_.size() && count <= (bytes_.size() - place) / sizeof(T);
    return is_inside ? reinterpret_cast<const T*>(bytes_.data() + place) : nullptr;
  }

 private:
  std::string_view bytes_;
};

struct SymbolTable {
  const Elf64_Sym* symbols = nullptr;
  size_t count = 0;
  const char* names = nullptr;
  size_t size_of_names = 0;
};

SymbolTable symbol_table_of(const MappedFile& file) {
  const auto* header = file.at<Elf64_Ehdr>(0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64) {
    return {};
  }
  const auto* sections = file.at<Elf64_Shdr>(header->e_shoff, header->e_shnum);
  for (size_t number = 0; sections && number < header->e_shnum; ++number) {
    const Elf64_Shdr& section = sections[number];
    if (section.sh_type == SHT_SYMTAB && section.sh_link < header->e_shnum) {
      const Elf64_Shdr& of_names = sections[section.sh_link];
      const size_t count = section.sh_size / sizeof(Elf64_Sym);
      const auto* symbols = file.at<Elf64_Sym>(section.sh_offset, count);
      const char* names = file.at<char>(of_names.sh_offset, of_names.sh_size);
      const bool is_whole = symbols && names && of_names.sh_size > 0 && names[of_names.sh_size - 1] == '\0';
      return is_whole ? SymbolTable{symbols, count, names, of_names.sh_size} : SymbolTable();
    }
  }
  return {};
}

} // namespace

std::unordered_map<std::string, uint64_t> functions_in_symbol_table(const char* path, const std::string& prefix) {
  std::unordered_map<std::string, uint64_t> functions;
  const MappedFile file(path);
  const SymbolTable table = symbol_table_of(file);
  for (size_t number = 0; number < table.count; ++number) {
    const Elf64_Sym& symbol = table.symbols[number];
    const bool is_function = ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF;
    if (is_function && symbol.st_name < table.size_of_names) {
      const char* name = table.names + symbol.st_name;
      if (std::strncmp(name, prefix.c_str(), prefix.size()) == 0) {
        functions.emplace(name, symbol.st_value);
      }
    }
  }
  return functions;
}

} // namespace gradc
