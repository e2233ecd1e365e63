// Vectors that keep their memory between steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace duologue {

template <typename T>
void grow(std::vector<T>& buffer, int64_t count) {
    if (static_cast<int64_t>(buffer.size()) < count) buffer.resize(static_cast<std::size_t>(count));
}

template <typename... T>
int64_t bytes_of(const std::vector<T>&... buffers) {
    return (int64_t(0) + ... + static_cast<int64_t>(buffers.capacity() * sizeof(T)));
}

}  // namespace duologue
