// Strong ids: integers that do not mix. `BlockId{3} == BlockId{3}`; a BlockId is no GroupId.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace quire {

template <class Tag, class Rep>
struct StrongId {
  Rep value{};
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  constexpr auto operator<=>(const StrongId&) const = default;
};

using BlockId = StrongId<struct BlockIdTag, int32_t>;       // a manager block of the pool; 0 is the null block
using GroupId = StrongId<struct GroupIdTag, int32_t>;       // a KV cache group
using LayerId = StrongId<struct LayerIdTag, int32_t>;       // a layer of the plan, in model order
using RequestId = StrongId<struct RequestIdTag, uint64_t>;  // unique within one engine's life

inline constexpr BlockId kNullBlock{0};

}  // namespace quire

template <class Tag, class Rep>
struct std::hash<quire::StrongId<Tag, Rep>> {
  size_t operator()(quire::StrongId<Tag, Rep> id) const { return std::hash<Rep>{}(id.value); }
};
