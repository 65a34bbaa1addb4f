//! The text room's Rust half: tokenizers, chat templates and grammars behind a small C boundary (include/quire_text.h).

pub mod error;
pub mod ffi;
pub mod gguf;
pub mod grammar;
pub mod hub;
mod json;
mod merge;
mod pretokenize;
mod specials;
pub mod strftime;
pub mod template;
pub mod tokenizer;
pub mod vocab;
