#include "net/outbox.h"

#include <utility>

#include "base/check.h"
#include "net/wire.h"

namespace quire::net {

void Outbox::respond(api::HttpResponse response) {
  if (closed_) return;
  QUIRE_CHECK(state_ == State::kFresh);
  append_head(unsent_, response,
              {.framing = Framing::kLength, .keep_alive = options_.keep_alive, .date = options_.date()});
  if (!options_.head_only) unsent_ += response.body;
  state_ = State::kDone;
  wake();
}

void Outbox::start(api::HttpResponse head) {
  if (closed_) return;
  QUIRE_CHECK(state_ == State::kFresh);
  chunked_ = options_.http11;
  if (!chunked_) options_.keep_alive = false;
  append_head(unsent_, head,
              {.framing = chunked_ ? Framing::kChunked : Framing::kUntilClose,
               .keep_alive = options_.keep_alive,
               .date = options_.date()});
  state_ = State::kStreaming;
  write(head.body);
  wake();
}

void Outbox::write(std::string_view piece) {
  if (closed_ || options_.head_only) return;
  QUIRE_CHECK(state_ == State::kStreaming);
  if (chunked_) {
    append_chunk(unsent_, piece);
  } else {
    unsent_ += piece;
  }
  if (unsent_.size() > options_.max_unsent && options_.drop) options_.drop();
  wake();
}

void Outbox::finish() {
  if (closed_) return;
  QUIRE_CHECK(state_ == State::kStreaming);
  if (chunked_ && !options_.head_only) unsent_ += kLastChunk;
  state_ = State::kDone;
  wake();
}

void Outbox::on_close(std::function<void()> callback) {
  if (closed_) {
    callback();
  } else {
    on_close_ = std::move(callback);
  }
}

void Outbox::close() {
  if (std::exchange(closed_, true)) return;
  const auto callback = std::exchange(on_close_, nullptr);
  const bool cut_off = state_ != State::kDone || !unsent_.empty();
  unsent_.clear();
  if (cut_off && callback) callback();
}

}  // namespace quire::net
