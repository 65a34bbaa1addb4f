// What a StepProfile says beside the machine's peaks, for people and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "exec/step_profile.h"
#include "kernels/roofline.h"

namespace quire::apps {

// A line for each operator that took time, and one for the step: all figures are of one step.
std::string profile_table(const exec::StepProfile& profile, const kernels::MachinePeaks& peaks);
nlohmann::json profile_json(const exec::StepProfile& profile, const kernels::MachinePeaks& peaks);

}  // namespace quire::apps
