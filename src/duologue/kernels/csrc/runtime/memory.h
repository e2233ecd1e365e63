// Anonymous memory, aligned to and backed by huge pages where the system grants them.
//
// Weights and KV are read in long streams; on 4 KiB pages the TLB misses cost bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>

namespace duologue {

class HugeBuffer {
public:
    // Throws std::bad_alloc when the address space or the memory limit does not allow it. Pages are zero and become
    // resident when first touched.
    explicit HugeBuffer(size_t bytes);
    ~HugeBuffer();
    HugeBuffer(const HugeBuffer&) = delete;
    HugeBuffer& operator=(const HugeBuffer&) = delete;

    uint8_t* data() const { return data_; }
    size_t bytes() const { return bytes_; }

    // Fills the first `count` bytes from a file. Throws std::runtime_error on a short read or an I/O error.
    void read_file(const char* path, size_t count);

private:
    void* mapping_ = nullptr;
    size_t mapped_bytes_ = 0;
    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace duologue
