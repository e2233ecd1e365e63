#include "runtime/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace duologue {
namespace {
constexpr size_t kHugePage = size_t(2) << 20;
}

HugeBuffer::HugeBuffer(size_t bytes) : bytes_(bytes) {
    if (bytes > SIZE_MAX - 2 * kHugePage) throw std::bad_alloc();  // rounding up would wrap around
    mapped_bytes_ = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
    mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) throw std::bad_alloc();
    const uintptr_t aligned = (reinterpret_cast<uintptr_t>(mapping_) + kHugePage - 1) / kHugePage * kHugePage;
    data_ = reinterpret_cast<uint8_t*>(aligned);
#if defined(MADV_HUGEPAGE)
    madvise(data_, mapped_bytes_ - kHugePage, MADV_HUGEPAGE);  // advice only: failure costs speed, nothing else
#endif
}

HugeBuffer::~HugeBuffer() { munmap(mapping_, mapped_bytes_); }

void HugeBuffer::read_file(const char* path, size_t count) {
    if (count > bytes_) throw std::invalid_argument("read_file: the buffer is smaller than the file");
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) throw std::runtime_error(std::string(path) + ": " + std::strerror(errno));
    size_t done = 0;
    while (done < count) {
        const ssize_t got = read(file, data_ + done, count - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            const std::string why = got < 0 ? std::strerror(errno) : "the file is shorter than expected";
            close(file);
            throw std::runtime_error(std::string(path) + ": " + why);
        }
        done += static_cast<size_t>(got);
    }
    close(file);
}

}  // namespace duologue
