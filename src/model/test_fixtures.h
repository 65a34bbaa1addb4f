// For tests alone: the models of tests/golden/models, also with other configurations.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "model/open_checkpoint.h"
#include "model/spec.h"

namespace quire::model {

inline weights::Checkpoint open_fixture(std::string_view name) {
  auto checkpoint = open_checkpoint(std::string(QUIRE_TEST_DATA) + "/models/" + std::string(name));
  if (!checkpoint) throw std::runtime_error(checkpoint.error().message);
  return std::move(*checkpoint);
}

// The valid spec of a fixture whose configuration has other values; null takes a key away.
inline Result<ModelSpec> changed_fixture(const std::string& name, const nlohmann::json& changes) {
  weights::Checkpoint checkpoint = open_fixture(name);
  nlohmann::json config = nlohmann::json::parse(checkpoint.config_json);
  config.merge_patch(changes);
  checkpoint.config_json = config.dump();
  auto spec = make_spec(checkpoint);
  if (spec)
    if (auto valid = validate(*spec); !valid) return std::unexpected(valid.error());
  return spec;
}

inline void expect_refused(const std::string& name, const nlohmann::json& changes, const std::string& param) {
  const auto spec = changed_fixture(name, changes);
  ASSERT_FALSE(spec) << changes;
  EXPECT_EQ(spec.error().param, param) << spec.error().message;
}

}  // namespace quire::model
