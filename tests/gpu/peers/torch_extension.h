/* torch_extension.h - what csrc/adam/cpu_adam_impl.cpp of DeepSpeed uses of <torch/extension.h>, so that
 * build-deepspeed- adam needs no PyTorch and its program carries none along: a tensor that only points at elements, and
 * the types of these. The loops over elements see float and bare loads of 16 bits (DeepSpeed's simd.h); conversions
 * here serve the last elements, less than a vector.
 */
#ifndef TESTS_GPU_PEERS_TORCH_EXTENSION_H
#define TESTS_GPU_PEERS_TORCH_EXTENSION_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <immintrin.h>

#define TORCH_CHECK(condition, ...)                                                                                    \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            throw std::runtime_error(#condition);                                                                      \
    } while (0)

namespace c10
{
struct Half {
    uint16_t bits;
    Half() = default;
    Half(float value) : bits(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT))
    {
    }
    operator float() const
    {
        return _cvtsh_ss(bits);
    }
};

/* Of numbers: a NaN may come out as infinity. */
struct BFloat16 {
    uint16_t bits;
    BFloat16() = default;
    BFloat16(float value)
    {
        uint32_t word;
        std::memcpy(&word, &value, sizeof word);
        bits = (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
    }
    operator float() const
    {
        uint32_t word = (uint32_t)bits << 16;
        float value;
        std::memcpy(&value, &word, sizeof value);
        return value;
    }
};

enum class ScalarType { Float, Half, BFloat16 };

template <typename T> constexpr ScalarType CppTypeToScalarType()
{
    return std::is_same_v<T, float> ? ScalarType::Float
                                    : (std::is_same_v<T, Half> ? ScalarType::Half : ScalarType::BFloat16);
}

inline const char *toString(ScalarType type)
{
    return type == ScalarType::Float ? "Float" : type == ScalarType::Half ? "Half" : "BFloat16";
}
} // namespace c10

namespace at
{
inline c10::ScalarType typeMetaToScalarType(c10::ScalarType type)
{
    return type;
}
} // namespace at

namespace torch
{
constexpr c10::ScalarType kFloat32 = c10::ScalarType::Float;

/* One-dimensional and contiguous. The memory is its maker's. */
class Tensor
{
  public:
    Tensor() = default;
    template <typename T>
    Tensor(T *elements, size_t n_elems) : data(elements), n(n_elems), type(c10::CppTypeToScalarType<T>())
    {
    }
    bool defined() const
    {
        return data != nullptr;
    }
    bool is_contiguous() const
    {
        return true;
    }
    Tensor contiguous() const
    {
        return *this;
    }
    int64_t numel() const
    {
        return (int64_t)n;
    }
    size_t element_size() const
    {
        return type == kFloat32 ? 4 : 2;
    }
    void *data_ptr() const
    {
        return data;
    }
    template <typename T> T *data_ptr() const
    {
        return (T *)data;
    }
    c10::ScalarType scalar_type() const
    {
        return type;
    }
    Tensor options() const
    {
        return *this;
    }
    c10::ScalarType dtype() const
    {
        return type;
    }

  private:
    void *data = nullptr;
    size_t n = 0;
    c10::ScalarType type = kFloat32;
};
} // namespace torch

#endif
