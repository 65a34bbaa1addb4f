// The bit contract for models with states, latents, indexers and chunked layers.
#include "engine/bits.h"

namespace quire::test {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Tiny, Bits,
    ::testing::Values(BitsCase{"qwen3_5", Profile::kBF16}, BitsCase{"qwen3_5", Profile::kF32},
                      BitsCase{"qwen3_next", Profile::kBF16}, BitsCase{"glm4_moe_lite", Profile::kBF16},
                      BitsCase{"glm4_moe_lite", Profile::kF32}, BitsCase{"deepseek_v3", Profile::kBF16},
                      BitsCase{"gguf/deepseek_v3.gguf", Profile::kF32}, BitsCase{"deepseek_v32", Profile::kBF16},
                      BitsCase{"glm_moe_dsa", Profile::kBF16}, BitsCase{"gguf/glm_moe_dsa.gguf", Profile::kF32},
                      BitsCase{"llama4", Profile::kBF16}, BitsCase{"llama4", Profile::kF32},
                      BitsCase{"glm5_next", Profile::kBF16}, BitsCase{"glm5_next", Profile::kF32}),
    name_of);

}  // namespace
}  // namespace quire::test
