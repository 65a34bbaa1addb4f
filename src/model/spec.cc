#include "model/spec.h"

namespace quire::model {

int MatrixSpec::rows() const {
  int total = 0;
  for (const auto& part : parts) total += part.rows;
  return total;
}

}  // namespace quire::model
