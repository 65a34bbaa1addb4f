#include "kernels/self_check.h"

#include <gtest/gtest.h>

#include "kernels/gated_delta_kernels.h"
#include "kernels/index_kernels.h"
#include "kernels/latent_kernels.h"
#include "kernels/row_ops.h"
#include "kernels/scan_kernels.h"
#include "kernels/test_tables.h"

namespace quire::kernels {
namespace {

class SelfCheck : public ::testing::Test {
 protected:
  void SetUp() override { set_flush_denormals(); }

  // Passes with every table, and with none whose kernels `spoil` has changed.
  template <class Kernels, class Spoil>
  static void expect_notices(Result<void> (*check)(const KernelTable&), const Kernels* KernelTable::* field,
                             Spoil spoil) {
    for (const KernelTable& table : test_tables()) {
      EXPECT_TRUE(check(table));
      Kernels wrong = *(table.*field);
      spoil(wrong);
      KernelTable changed = table;
      changed.*field = &wrong;
      const auto result = check(changed);
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().kind, ErrorKind::kInternal);
    }
  }
};

TEST_F(SelfCheck, NoticesWrongRows) {
  expect_notices(row_ops_self_check, &KernelTable::rows, [](RowKernels& k) { k.silu_mul = k.gelu_tanh_mul; });
  expect_notices(row_ops_self_check, &KernelTable::rows, [](RowKernels& k) { k.rope_half = k.rope_interleaved; });
}

TEST_F(SelfCheck, NoticesWrongScans) {
  expect_notices(scan_self_check, &KernelTable::scan,
                 [](ScanKernels& k) { k.has_nan = [](const float*, int) { return false; }; });
  expect_notices(scan_self_check, &KernelTable::scan,
                 [](ScanKernels& k) { k.count_above = [](const float*, int, float) { return 0; }; });
}

TEST_F(SelfCheck, NoticesAWrongGatedDelta) {
  expect_notices(gated_delta_self_check, &KernelTable::gated_delta, [](GatedDeltaKernels& k) {
    k.key_head = [](const KeyHeadArgs& args) {
      KeyHeadArgs less = args;
      less.key_dim--;
      gated_delta_kernels_scalar().key_head(less);
    };
  });
}

TEST_F(SelfCheck, NoticesWrongLatents) {
  expect_notices(latent_self_check, &KernelTable::latent, [](LatentKernels& k) {
    k.merge = [](SoftmaxState&, float*, const SoftmaxState&, const float*, int) {};
  });
  expect_notices(latent_self_check, &KernelTable::latent, [](LatentKernels& k) { k.f32 = k.bf16; });
}

TEST_F(SelfCheck, NoticesAWrongIndex) {
  expect_notices(index_self_check, &KernelTable::index, [](IndexKernels& k) {
    k.pool = [](const IndexPoolArgs& args) {
      IndexPoolArgs less = args;
      less.pool--;
      index_kernels_scalar().pool(less);
    };
  });
  expect_notices(index_self_check, &KernelTable::index, [](IndexKernels& k) {
    k.score_f32 = [](const IndexScoreArgs& args) {
      IndexScoreArgs less = args;
      less.heads--;
      index_kernels_scalar().score_f32(less);
    };
  });
}

}  // namespace
}  // namespace quire::kernels
