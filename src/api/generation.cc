#include "api/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "api/error_reply.h"
#include "api/explain.h"
#include "api/parsers/pending_text.h"
#include "base/log.h"

namespace quire::api {
namespace {

// Tokens of an answer that may wait for the io thread before its inbox needs more memory.
constexpr size_t kInboxTokens = 512;

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

Generation::Generation(GenerationContext& context, std::shared_ptr<Exchange> exchange, std::string request_id,
                       const Endpoint& endpoint)
    : context_(context), exchange_(std::move(exchange)), request_id_(std::move(request_id)), endpoint_(endpoint) {}

void Generation::begin(HttpRequest request) {
  client_ = std::move(request.client);
  exchange_->on_close([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->client_left();
  });
  const uint64_t random_seed = context_.options.random();
  on_text_thread([this, body = std::move(request.body), random_seed] { plan(body, random_seed); });
}

// Runs `work` on a text thread, where it may run out of memory: that ends the request alone.
void Generation::on_text_thread(std::function<void()> work) {
  context_.pool.submit([self = shared_from_this(), work = std::move(work)] {
    try {
      work();
    } catch (const std::exception& failure) {
      self->exchange_->post([self, error = Error{ErrorKind::kInternal, failure.what()}] { self->fail(error); });
    }
  });
}

void Generation::plan(const std::string& body, uint64_t random_seed) {
  if (closed_) return;
  auto asked = endpoint_.ask(body, {.backend = context_.backend,
                                    .service = context_.options,
                                    .request_id = request_id_,
                                    .fingerprint = context_.fingerprint,
                                    .now = static_cast<int64_t>(std::time(nullptr)),
                                    .random_seed = random_seed});
  if (!asked) {
    exchange_->post([self = shared_from_this(), error = asked.error()] { self->fail(error); });
    return;
  }
  plan_ = std::move(asked->plan);
  reply_ = std::move(asked->reply);
  for (const auto& prompt : plan_.prompts) usage_.prompt_tokens += static_cast<int64_t>(prompt.size());
  for (size_t i = 0; i < plan_.answers(); ++i) {
    AnswerReader reader(plan_, context_.backend.formats);
    Choice choice(plan_.options, context_.backend.tokenizer, context_.backend.info->end_tokens,
                  reader.parses() ? context_.marker_tokens : std::vector<TokenId>());
    answers_.push_back({.choice = std::move(choice), .reader = std::move(reader)});
    if (plan_.echo) add_piece(answers_[i].pieces, OutputPiece::Kind::kContent, 0, echo_text(i));
  }
  submit();
}

void Generation::submit() {
  std::vector<Request> requests;
  std::vector<Engine::Sink> sinks;
  inbox_.open(answers_.size());
  for (size_t i = 0; i < answers_.size(); ++i) {
    requests.push_back(plan_.request(i));
    sinks.emplace_back([self = shared_from_this(), i](Update&& update) {
      self->inbox_.add(i, std::move(update));
      self->exchange_->post(self);
    });
  }
  auto ids = context_.backend.submit_all(std::move(requests), std::move(sinks));
  if (ids) {
    exchange_->post([self = shared_from_this(), ids = std::move(*ids)]() mutable { self->submitted(std::move(ids)); });
  } else {
    exchange_->post([self = shared_from_this(), error = ids.error()] { self->fail(error); });
  }
}

std::string Generation::echo_text(size_t answer) const {
  const text::Tokenizer* tokenizer = context_.backend.tokenizer;
  if (tokenizer == nullptr) return {};
  const auto& prompt = plan_.prompts[answer / static_cast<size_t>(plan_.options.n)];
  return tokenizer->decode(prompt, plan_.options.skip_special_tokens).value_or("");
}

void Generation::submitted(std::vector<uint64_t> ids) {
  planned_ = true;
  ids_ = std::move(ids);
  for (size_t i = 0; i < plan_.prompts.size(); ++i) context_.metrics.asked(plan_.options.n);
  if (closed_) return cancel_all();
  // Stop strings may have been found before the ids were known.
  for (size_t i = 0; i < answers_.size(); ++i) {
    if (answers_[i].choice.ended_by_text()) context_.backend.cancel(ids_[i]);
  }
  if (plan_.options.stream) start_stream();
}

void Generation::fail(const Error& error) {
  planned_ = true;
  if (closed_.exchange(true)) return;
  const ApiError shown = api_error(error);
  if (stream_started_) {
    exchange_->write(reply_->failure(shown));
    exchange_->finish();
  } else {
    HttpResponse response = error_response(shown, endpoint_.path);
    response.headers.emplace_back("X-Request-Id", request_id_);
    exchange_->respond(std::move(response));
  }
  log(shown.status);
  cancel_all();
}

void Generation::Inbox::open(size_t answers) {
  const std::lock_guard lock(mutex_);
  slots_.resize(answers);
  for (Slot& slot : slots_) slot.update.tokens.reserve(kInboxTokens);
}

void Generation::Inbox::add(size_t answer, Update&& update) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[answer];
  Update& all = slot.update;
  slot.filled = true;
  all.tokens.insert(all.tokens.end(), update.tokens.begin(), update.tokens.end());
  std::ranges::move(update.logprobs, std::back_inserter(all.logprobs));
  std::ranges::move(update.prompt_logprobs, std::back_inserter(all.prompt_logprobs));
  all.finish = update.finish;
  all.stop_token = update.stop_token;
  all.error = std::move(update.error);
  all.cached_tokens = std::max(all.cached_tokens, update.cached_tokens);
  if (update.times) all.times = update.times;
  if (update.cache_report) all.cache_report = std::move(update.cache_report);
}

bool Generation::Inbox::take(size_t answer, Update& update) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[answer];
  if (!std::exchange(slot.filled, false)) return false;
  std::swap(slot.update, update);
  return true;
}

void Generation::run() {
  for (size_t i = 0; i < answers_.size(); ++i) {
    if (!inbox_.take(i, taken_)) continue;
    on_update(i, std::move(taken_));
    Update empty;
    empty.tokens = std::move(taken_.tokens);
    empty.tokens.clear();
    empty.tokens.reserve(kInboxTokens);
    taken_ = std::move(empty);
  }
}

void Generation::on_update(size_t index, Update&& update) {
  planned_ = true;
  Answer& answer = answers_[index];
  if (answer.choice.finished()) return;
  if (!update.tokens.empty()) time_tokens(answer);
  if (index == first_answer(index) && update.cached_tokens > answer.cached_tokens) {
    usage_.cached_tokens += update.cached_tokens - answer.cached_tokens;
    answer.cached_tokens = update.cached_tokens;
  }
  if (update.times) answer.times = update.times;
  if (update.cache_report) answer.cache_report = std::move(update.cache_report);
  std::ranges::move(update.prompt_logprobs, std::back_inserter(answer.prompt_logprobs));
  std::optional<Error> error = std::move(update.error);
  Choice::Delta delta = answer.choice.accept(std::move(update));
  if (answer.choice.ended_by_text() && !ids_.empty()) context_.backend.cancel(ids_[index]);
  if (plan_.answer_wanted) {
    usage_.completion_tokens += static_cast<int64_t>(delta.tokens.size());
  } else {
    delta = {};
  }
  if (answer.choice.finished()) answer_ended(index, error);
  if (closed_) return;
  keep(answer, std::move(delta));
  if (plan_.options.stream) stream(index);
  if (ended_ < answers_.size()) return;
  if (plan_.options.stream) {
    end_stream();
  } else {
    send_body();
  }
}

void Generation::time_tokens(Answer& answer) {
  const Clock::time_point now = Clock::now();
  if (answer.first_token == Clock::time_point{}) {
    answer.first_token = now;
    context_.metrics.first_token(seconds(now - arrival_));
  } else {
    context_.metrics.next_tokens(seconds(now - answer.last_token));
  }
  answer.last_token = now;
}

void Generation::answer_ended(size_t index, const std::optional<Error>& error) {
  Answer& answer = answers_[index];
  if (answer.cache_report && answer.times) answer.quire = explain_json(*answer.times, *answer.cache_report);
  const auto& prompt = plan_.prompts[index / static_cast<size_t>(plan_.options.n)];
  const auto size = static_cast<int64_t>(prompt.size());
  ++ended_;
  const std::string_view reason = answer.choice.finish_reason();
  context_.metrics.finished(
      {.reason = reason,
       .seconds = seconds(Clock::now() - arrival_),
       .times = answer.times,
       .prompt_tokens = size,
       .generation_tokens = answer.choice.tokens(),
       .max_tokens = std::min<int64_t>(plan_.max_tokens(), context_.backend.info->max_model_len - size)});
  if (reason == "error") fail(error.value_or(Error{ErrorKind::kInternal, "the request failed"}));
  if (reason == "abort") fail({ErrorKind::kInternal, "the request was ended by the server"});
}

void Generation::keep(Answer& answer, Choice::Delta delta) {
  const int64_t reasoned = answer.reader.reasoning_tokens();
  answer.reader.read(delta, answer.choice.finished(), answer.pieces);
  usage_.reasoning_tokens += answer.reader.reasoning_tokens() - reasoned;
  answer.tokens.insert(answer.tokens.end(), delta.tokens.begin(), delta.tokens.end());
  std::ranges::move(delta.logprobs, std::back_inserter(answer.logprobs));
}

Headers Generation::headers() const {
  Headers headers = {{"X-Request-Id", request_id_}};
  if (plan_.seed_chosen) headers.emplace_back("X-Quire-Seed", std::to_string(plan_.seed));
  std::string ignored = header_list(plan_.ignored_fields);
  if (!ignored.empty()) headers.emplace_back("X-Quire-Ignored-Fields", std::move(ignored));
  return headers;
}

AnswerPiece Generation::piece_of(size_t index) const {
  const Answer& answer = answers_[index];
  AnswerPiece piece{.index = static_cast<int>(index),
                    .first = !answer.started,
                    .pieces = answer.pieces,
                    .tokens = answer.tokens,
                    .finish_reason = answer.choice.finish_reason(),
                    .stop_reason = answer.choice.stop_reason(),
                    .called = answer.reader.called(),
                    .echo = plan_.echo && !answer.started,
                    .quire = answer.quire};
  if (plan_.options.sampling.logprobs) piece.logprobs = answer.logprobs;
  piece.prompt = plan_.prompts[index / static_cast<size_t>(plan_.options.n)];
  if (plan_.options.sampling.prompt_logprobs) piece.prompt_logprobs = answers_[first_answer(index)].prompt_logprobs;
  return piece;
}

void Generation::start_stream() {
  if (std::exchange(stream_started_, true)) return;
  HttpResponse head{.headers = headers(), .content_type = "text/event-stream; charset=utf-8"};
  head.headers.emplace_back("Cache-Control", "no-cache");
  exchange_->start(std::move(head));
  exchange_->write(reply_->begin(usage_));
}

void Generation::stream(size_t index) {
  start_stream();
  send_piece(index);
  if (!echoes_logprobs() || index != first_answer(index)) return;
  // Other answers to this prompt may have waited for its log-probabilities.
  const size_t end = index + static_cast<size_t>(plan_.options.n);
  for (size_t other = index + 1; other < end; ++other) {
    if (!answers_[other].started && answers_[other].choice.tokens() > 0) send_piece(other);
  }
}

// An echoed prompt goes out with the first token, and with its log-probabilities where they are asked for.
bool Generation::waits_for_echo(size_t index) const {
  const auto begun = [&](size_t answer) {
    return answers_[answer].choice.tokens() > 0 || answers_[answer].choice.finished();
  };
  return plan_.echo && (!begun(index) || (echoes_logprobs() && !begun(first_answer(index))));
}

// Sends what is kept of this answer, if that says anything to the client.
void Generation::send_piece(size_t index) {
  if (waits_for_echo(index)) return;
  Answer& answer = answers_[index];
  const bool says_tokens = plan_.options.sampling.logprobs || plan_.options.return_token_ids;
  if (answer.pieces.empty() && (answer.tokens.empty() || !says_tokens) && !answer.choice.finished()) return;
  exchange_->write(reply_->piece(piece_of(index), usage_));
  answer.started = true;
  answer.pieces.clear();
  answer.tokens.clear();
  answer.logprobs.clear();
}

void Generation::end_stream() {
  closed_ = true;
  exchange_->write(reply_->end(usage_, answers_.front().quire));
  exchange_->finish();
  log(200);
}

// Large log-probabilities make a long body: a text thread writes it.
void Generation::send_body() {
  on_text_thread([this] {
    std::vector<AnswerPiece> pieces;
    for (size_t i = 0; i < answers_.size(); ++i) pieces.push_back(piece_of(i));
    HttpResponse response{.headers = headers(), .body = reply_->body(pieces, usage_)};
    exchange_->post([self = shared_from_this(), response = std::move(response)]() mutable {
      if (self->closed_.exchange(true)) return;
      self->exchange_->respond(std::move(response));
      self->log(200);
    });
  });
}

void Generation::client_left() {
  if (closed_.exchange(true)) return;
  log(499);
  cancel_all();
}

void Generation::cancel_all() {
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (!answers_[i].choice.finished()) context_.backend.cancel(ids_[i]);
  }
}

void Generation::log(int status) const {
  context_.metrics.replied(status);
  const auto milliseconds = [&](Clock::time_point when) { return seconds(when - arrival_) * 1e3; };
  std::vector<log::Field> fields = {{"id", request_id_},
                                    {"client", client_},
                                    {"path", endpoint_.path},
                                    {"status", int64_t{status}},
                                    {"total_ms", milliseconds(Clock::now())}};
  if (planned_ && !answers_.empty()) {
    const Answer& first = answers_.front();
    fields.insert(fields.end(), {{"stream", plan_.options.stream},
                                 {"answers", static_cast<int64_t>(answers_.size())},
                                 {"prompt_tokens", usage_.prompt_tokens},
                                 {"cached_tokens", usage_.cached_tokens},
                                 {"completion_tokens", usage_.completion_tokens}});
    if (first.first_token != Clock::time_point{}) fields.push_back({"ttft_ms", milliseconds(first.first_token)});
    if (first.choice.finished()) fields.push_back({"finish", first.choice.finish_reason()});
  }
  log::info("request", fields);
}

}  // namespace quire::api
