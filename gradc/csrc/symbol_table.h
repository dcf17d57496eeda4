// The functions of a shared library that it does not give out to others.
//
//     functions_in_symbol_table(path, prefix) -> {name: place}    in the table that linkers keep for debuggers, where nobody stripped it
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

namespace gradc {

// Those whose names begin so. A place counts from where the library is loaded. None of a file that cannot be read, or is not ELF of
// 64 bits.
std::unordered_map<std::string, uint64_t> functions_in_symbol_table(const char* path, const std::string& prefix);

} // namespace gradc
