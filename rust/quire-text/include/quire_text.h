// The C boundary of quire-text, kept by hand beside src/ffi.rs; a test compares the two.
//
// Every function that can fail returns a status and, if it is not 0, puts a message into *error, which the caller frees
// with quire_text_free_bytes. Nothing unwinds across the boundary. Texts and paths given in are borrowed for the call.
// Tokenizers, templates, vocabularies and grammars are immutable: any number of threads may use one at a time. A
// matcher is one thread's at a time.
#ifndef QUIRE_TEXT_H
#define QUIRE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  QUIRE_TEXT_OK = 0,
  QUIRE_TEXT_INVALID_INPUT = 1,  // the caller's text, ids or messages are wrong
  QUIRE_TEXT_CORRUPT_FILE = 2,   // a model's file contradicts itself or its format
  QUIRE_TEXT_UNSUPPORTED = 3,    // understood, but not implemented
  QUIRE_TEXT_TOO_LARGE = 4,      // more work than the limits allow
  QUIRE_TEXT_INTERNAL = 5,       // our own fault
};

typedef struct quire_text_tokenizer quire_text_tokenizer;
typedef struct quire_text_template quire_text_template;
typedef struct quire_text_vocabulary quire_text_vocabulary;
typedef struct quire_text_grammar quire_text_grammar;
typedef struct quire_text_matcher quire_text_matcher;

// A borrowed string; need not end in 0. `data` may be null if `size` is 0.
typedef struct {
  const uint8_t* data;
  size_t size;
} quire_text_str;

// Bytes that the caller frees.
typedef struct {
  uint8_t* data;
  size_t size;
} quire_text_bytes;

// Ids that the caller frees.
typedef struct {
  uint32_t* data;
  size_t size;
} quire_text_ids;

// Tokenizer metadata of a GGUF file. An id below 0 and a choice below 0 mean that the key is absent.
typedef struct {
  quire_text_str model;
  quire_text_str pre;
  const quire_text_str* tokens;
  size_t token_count;
  const float* scores;
  size_t score_count;
  const int32_t* token_types;
  size_t token_type_count;
  const quire_text_str* merges;
  size_t merge_count;
  int64_t bos;
  int64_t eos;
  int64_t unk;
  int64_t pad;
  int64_t eot;
  int64_t eom;
  int32_t add_bos;
  int32_t add_eos;
  int32_t add_space_prefix;
} quire_text_gguf;

enum {
  QUIRE_TEXT_TOKEN_SPECIAL = 1,  // left out of the text by skip_special
  QUIRE_TEXT_TOKEN_HOLE = 2,     // an id inside the range that names no token
};

enum {
  QUIRE_TEXT_LEADING_KEEP = 0,
  QUIRE_TEXT_LEADING_DROP_ONE = 1,
  QUIRE_TEXT_LEADING_DROP_ALL = 2,
};

// The tables of a tokenizer, borrowed from it. Token i's bytes are piece_bytes[piece_offsets[i]..piece_offsets[i + 1]],
// and so for names; each offset list has token_count + 1 entries. A special id is -1 if there is none.
typedef struct {
  size_t token_count;
  const uint8_t* name_bytes;
  const uint32_t* name_offsets;
  const uint8_t* piece_bytes;
  const uint32_t* piece_offsets;
  const uint8_t* flags;
  uint32_t leading_space;
  int64_t bos;
  int64_t eos;
  int64_t unk;
  int64_t pad;
  const uint32_t* end_ids;
  size_t end_id_count;
} quire_text_vocab;

// What a grammar's text is: a JSON schema, a regular expression for the whole answer, a JSON list of strings of which
// the answer is one, or a Lark grammar.
enum {
  QUIRE_TEXT_GRAMMAR_JSON_SCHEMA = 0,
  QUIRE_TEXT_GRAMMAR_REGEX = 1,
  QUIRE_TEXT_GRAMMAR_CHOICE = 2,
  QUIRE_TEXT_GRAMMAR_LARK = 3,
};

// The local time that strftime_now prints; month and day count from 1.
typedef struct {
  int32_t year;
  int32_t month;
  int32_t day;
  int32_t hour;
  int32_t minute;
  int32_t second;
} quire_text_time;

int32_t quire_text_tokenizer_from_json(quire_text_str json, quire_text_tokenizer** out, quire_text_bytes* error);
int32_t quire_text_tokenizer_from_gguf(const quire_text_gguf* metadata, quire_text_tokenizer** out,
                                       quire_text_bytes* error);
void quire_text_tokenizer_free(quire_text_tokenizer* tokenizer);
int32_t quire_text_tokenizer_encode(const quire_text_tokenizer* tokenizer, quire_text_str text, bool add_special,
                                    bool parse_special, quire_text_ids* out, quire_text_bytes* error);
void quire_text_tokenizer_vocab(const quire_text_tokenizer* tokenizer, quire_text_vocab* out);
// The id of the token with this name, or -1.
int64_t quire_text_tokenizer_find(const quire_text_tokenizer* tokenizer, quire_text_str name);

// `tool_use` takes the place of `source` when there are tools; empty if there is none. `special_tokens` is a JSON
// object of names such as bos_token and their texts.
int32_t quire_text_template_compile(quire_text_str source, quire_text_str tool_use, quire_text_str special_tokens,
                                    quire_text_template** out, quire_text_bytes* error);
void quire_text_template_free(quire_text_template* chat_template);
// `messages` is a JSON list and `options` a JSON object.
int32_t quire_text_template_render(const quire_text_template* chat_template, quire_text_str messages,
                                   quire_text_str options, quire_text_time now, quire_text_bytes* out,
                                   quire_text_bytes* error);

// The tokens of a model of `model_vocab_size` as grammars need them; takes about a second for 150,000. The tokenizer is
// not needed afterwards.
int32_t quire_text_vocabulary_build(const quire_text_tokenizer* tokenizer, const uint32_t* end_ids, size_t end_id_count,
                                    size_t model_vocab_size, quire_text_vocabulary** out, quire_text_bytes* error);
void quire_text_vocabulary_free(quire_text_vocabulary* vocabulary);
// The grammar outlives the vocabulary if it must.
int32_t quire_text_grammar_compile(const quire_text_vocabulary* vocabulary, int32_t kind, quire_text_str text,
                                   quire_text_grammar** out, quire_text_bytes* error);
void quire_text_grammar_free(quire_text_grammar* grammar);
// Name and version of what decides masks.
void quire_text_grammar_engine(quire_text_str* out);
int32_t quire_text_matcher_start(const quire_text_grammar* grammar, quire_text_matcher** out, quire_text_bytes* error);
void quire_text_matcher_free(quire_text_matcher* matcher);
// Bit i % 32 of word i / 32 says whether token i may come next. `word_count` is the model's vocabulary / 32, rounded
// up.
int32_t quire_text_matcher_mask(quire_text_matcher* matcher, uint32_t* words, size_t word_count,
                                quire_text_bytes* error);
// `token` must be of the latest mask. *finished: nothing may follow it.
int32_t quire_text_matcher_accept(quire_text_matcher* matcher, uint32_t token, bool* finished, quire_text_bytes* error);
int32_t quire_text_matcher_rollback(quire_text_matcher* matcher, size_t tokens, quire_text_bytes* error);

void quire_text_free_bytes(quire_text_bytes bytes);
void quire_text_free_ids(quire_text_ids ids);

#ifdef __cplusplus
}
#endif

#endif
