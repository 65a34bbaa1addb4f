//! The C boundary. Every entry that can fail goes through guard(), which turns an Err or a panic into a status and a
//! message. include/quire_text.h is kept by hand; tests/header.rs compares it with this file.

use crate::error::{Error, Result, Status};
use crate::gguf::GgufMetadata;
use crate::grammar::{self, Grammar, Kind, Matcher, Vocabulary};
use crate::strftime::LocalTime;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Str {
    pub data: *const u8,
    pub size: usize,
}

#[repr(C)]
pub struct Bytes {
    pub data: *mut u8,
    pub size: usize,
}

#[repr(C)]
pub struct Ids {
    pub data: *mut u32,
    pub size: usize,
}

#[repr(C)]
pub struct Gguf {
    pub model: Str,
    pub pre: Str,
    pub tokens: *const Str,
    pub token_count: usize,
    pub scores: *const f32,
    pub score_count: usize,
    pub token_types: *const i32,
    pub token_type_count: usize,
    pub merges: *const Str,
    pub merge_count: usize,
    pub bos: i64,
    pub eos: i64,
    pub unk: i64,
    pub pad: i64,
    pub eot: i64,
    pub eom: i64,
    pub add_bos: i32,
    pub add_eos: i32,
    pub add_space_prefix: i32,
}

#[repr(C)]
pub struct VocabView {
    pub token_count: usize,
    pub name_bytes: *const u8,
    pub name_offsets: *const u32,
    pub piece_bytes: *const u8,
    pub piece_offsets: *const u32,
    pub flags: *const u8,
    pub leading_space: u32,
    pub bos: i64,
    pub eos: i64,
    pub unk: i64,
    pub pad: i64,
    pub end_ids: *const u32,
    pub end_id_count: usize,
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// A panic inside the boundary is reported as a status, so nothing is printed for it; other panics keep their hook.
fn silence_guarded_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !GUARDED.with(Cell::get) {
                previous(info);
            }
        }));
    });
}

/// `blame` is what a panic speaks against: the file that is read, or this library.
unsafe fn guard(error: *mut Bytes, blame: Status, work: impl FnOnce() -> Result<()>) -> i32 {
    silence_guarded_panics();
    GUARDED.with(|g| g.set(true));
    let outcome = catch_unwind(AssertUnwindSafe(work));
    GUARDED.with(|g| g.set(false));
    let failure = match outcome {
        Ok(Ok(())) => return Status::Ok as i32,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let text = payload
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_owned());
            Error::new(blame, format!("the text library panicked: {text}"))
        }
    };
    if !error.is_null() {
        *error = give_bytes(failure.message.into_bytes());
    }
    failure.status as i32
}

fn give_bytes(bytes: Vec<u8>) -> Bytes {
    let bytes = Box::leak(bytes.into_boxed_slice());
    Bytes { data: bytes.as_mut_ptr(), size: bytes.len() }
}

unsafe fn slice<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if data.is_null() || count == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, count)
    }
}

unsafe fn text<'a>(s: Str, what: &str) -> Result<&'a str> {
    std::str::from_utf8(slice(s.data, s.size))
        .map_err(|e| Error::invalid(format!("{what} is not valid UTF-8 (at byte {})", e.valid_up_to())))
}

fn optional_id(id: i64, what: &str) -> Result<Option<u32>> {
    if id < 0 {
        return Ok(None);
    }
    u32::try_from(id).map(Some).map_err(|_| Error::corrupt(format!("tokenizer.ggml.{what}_token_id is {id}")))
}

fn id_or_none(id: Option<u32>) -> i64 {
    id.map_or(-1, i64::from)
}

/// # Safety
/// `json` must be readable; `out` and `error` must be writable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_tokenizer_from_json(json: Str, out: *mut *mut Tokenizer, error: *mut Bytes) -> i32 {
    guard(error, Status::CorruptFile, || {
        let tokenizer = Tokenizer::from_json(slice(json.data, json.size))?;
        *out = Box::into_raw(Box::new(tokenizer));
        Ok(())
    })
}

/// # Safety
/// `metadata` and all it points to must be readable; `out` and `error` must be writable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_tokenizer_from_gguf(
    metadata: *const Gguf,
    out: *mut *mut Tokenizer,
    error: *mut Bytes,
) -> i32 {
    guard(error, Status::Internal, || {
        let m = &*metadata;
        let strings = |data, count| slice(data, count).iter().map(|s: &Str| slice(s.data, s.size)).collect();
        let choice = |value: i32| (value >= 0).then_some(value > 0);
        let tokenizer = Tokenizer::from_gguf(&GgufMetadata {
            model: text(m.model, "tokenizer.ggml.model")?,
            pre: text(m.pre, "tokenizer.ggml.pre")?,
            tokens: strings(m.tokens, m.token_count),
            scores: slice(m.scores, m.score_count),
            token_types: slice(m.token_types, m.token_type_count),
            merges: strings(m.merges, m.merge_count),
            bos: optional_id(m.bos, "bos")?,
            eos: optional_id(m.eos, "eos")?,
            unk: optional_id(m.unk, "unknown")?,
            pad: optional_id(m.pad, "padding")?,
            eot: optional_id(m.eot, "eot")?,
            eom: optional_id(m.eom, "eom")?,
            add_bos: choice(m.add_bos),
            add_eos: choice(m.add_eos),
            add_space_prefix: choice(m.add_space_prefix),
        })?;
        *out = Box::into_raw(Box::new(tokenizer));
        Ok(())
    })
}

/// # Safety
/// `tokenizer` must come from this library and not be used afterwards.
#[no_mangle]
pub unsafe extern "C" fn quire_text_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

/// # Safety
/// `tokenizer` must be alive, `text` readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_tokenizer_encode(
    tokenizer: *const Tokenizer,
    text: Str,
    add_special: bool,
    parse_special: bool,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    guard(error, Status::Internal, || {
        let ids = (*tokenizer).encode(self::text(text, "the text")?, add_special, parse_special)?;
        let ids = Box::leak(ids.into_boxed_slice());
        *out = Ids { data: ids.as_mut_ptr(), size: ids.len() };
        Ok(())
    })
}

/// # Safety
/// `tokenizer` must be alive and outlive the use of `out`, which must be writable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_tokenizer_vocab(tokenizer: *const Tokenizer, out: *mut VocabView) {
    let vocab = (*tokenizer).vocab();
    *out = VocabView {
        token_count: vocab.names.count(),
        name_bytes: vocab.names.bytes.as_ptr(),
        name_offsets: vocab.names.offsets.as_ptr(),
        piece_bytes: vocab.pieces.bytes.as_ptr(),
        piece_offsets: vocab.pieces.offsets.as_ptr(),
        flags: vocab.flags.as_ptr(),
        leading_space: vocab.leading_space as u32,
        bos: id_or_none(vocab.bos),
        eos: id_or_none(vocab.eos),
        unk: id_or_none(vocab.unk),
        pad: id_or_none(vocab.pad),
        end_ids: vocab.end_ids.as_ptr(),
        end_id_count: vocab.end_ids.len(),
    };
}

/// # Safety
/// `tokenizer` must be alive and `name` readable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_tokenizer_find(tokenizer: *const Tokenizer, name: Str) -> i64 {
    id_or_none((*tokenizer).vocab().token_id(slice(name.data, name.size)))
}

/// # Safety
/// `source`, `tool_use` and `special_tokens` must be readable; `out` and `error` must be writable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_template_compile(
    source: Str,
    tool_use: Str,
    special_tokens: Str,
    out: *mut *mut ChatTemplate,
    error: *mut Bytes,
) -> i32 {
    guard(error, Status::Internal, || {
        let source = text(source, "the chat template")?;
        let tool_use = text(tool_use, "the chat template for tool use")?;
        let template = ChatTemplate::compile(source, tool_use, text(special_tokens, "the special tokens")?)?;
        *out = Box::into_raw(Box::new(template));
        Ok(())
    })
}

/// # Safety
/// `chat_template` must come from this library and not be used afterwards.
#[no_mangle]
pub unsafe extern "C" fn quire_text_template_free(chat_template: *mut ChatTemplate) {
    if !chat_template.is_null() {
        drop(Box::from_raw(chat_template));
    }
}

/// # Safety
/// `chat_template` must be alive, `messages` and `options` readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_template_render(
    chat_template: *const ChatTemplate,
    messages: Str,
    options: Str,
    now: LocalTime,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(error, Status::Internal, || {
        let rendered = (*chat_template).render(text(messages, "messages")?, text(options, "template options")?, now)?;
        *out = give_bytes(rendered.into_bytes());
        Ok(())
    })
}

/// # Safety
/// `tokenizer` must be alive, `end_ids` readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_vocabulary_build(
    tokenizer: *const Tokenizer,
    end_ids: *const u32,
    end_id_count: usize,
    model_vocab_size: usize,
    out: *mut *mut Vocabulary,
    error: *mut Bytes,
) -> i32 {
    guard(error, Status::Internal, || {
        let ends = slice(end_ids, end_id_count);
        *out = Box::into_raw(Box::new(Vocabulary::build((*tokenizer).vocab(), ends, model_vocab_size)?));
        Ok(())
    })
}

/// # Safety
/// `vocabulary` must come from this library and not be used afterwards.
#[no_mangle]
pub unsafe extern "C" fn quire_text_vocabulary_free(vocabulary: *mut Vocabulary) {
    if !vocabulary.is_null() {
        drop(Box::from_raw(vocabulary));
    }
}

/// # Safety
/// `vocabulary` must be alive, `text` readable, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_grammar_compile(
    vocabulary: *const Vocabulary,
    kind: i32,
    text: Str,
    out: *mut *mut Grammar,
    error: *mut Bytes,
) -> i32 {
    guard(error, Status::Internal, || {
        let kind = Kind::from_number(kind)?;
        let grammar = (*vocabulary).compile(kind, self::text(text, "it")?)?;
        *out = Box::into_raw(Box::new(grammar));
        Ok(())
    })
}

/// # Safety
/// `grammar` must come from this library and not be used afterwards.
#[no_mangle]
pub unsafe extern "C" fn quire_text_grammar_free(grammar: *mut Grammar) {
    if !grammar.is_null() {
        drop(Box::from_raw(grammar));
    }
}

/// # Safety
/// `out` must be writable; the string lives as long as the program.
#[no_mangle]
pub unsafe extern "C" fn quire_text_grammar_engine(out: *mut Str) {
    *out = Str { data: grammar::ENGINE.as_ptr(), size: grammar::ENGINE.len() };
}

/// # Safety
/// `grammar` must be alive, `out` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_matcher_start(
    grammar: *const Grammar,
    out: *mut *mut Matcher,
    error: *mut Bytes,
) -> i32 {
    guard(error, Status::Internal, || {
        *out = Box::into_raw(Box::new((*grammar).start()));
        Ok(())
    })
}

/// # Safety
/// `matcher` must come from this library and not be used afterwards.
#[no_mangle]
pub unsafe extern "C" fn quire_text_matcher_free(matcher: *mut Matcher) {
    if !matcher.is_null() {
        drop(Box::from_raw(matcher));
    }
}

/// # Safety
/// `matcher` must be alive and used by nobody else, `words` writable for `word_count` words, `error` writable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_matcher_mask(
    matcher: *mut Matcher,
    words: *mut u32,
    word_count: usize,
    error: *mut Bytes,
) -> i32 {
    guard(error, Status::Internal, || (*matcher).mask(std::slice::from_raw_parts_mut(words, word_count)))
}

/// # Safety
/// `matcher` must be alive and used by nobody else, `finished` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_matcher_accept(
    matcher: *mut Matcher,
    token: u32,
    finished: *mut bool,
    error: *mut Bytes,
) -> i32 {
    guard(error, Status::Internal, || {
        *finished = (*matcher).accept(token)?;
        Ok(())
    })
}

/// # Safety
/// `matcher` must be alive and used by nobody else, `error` writable.
#[no_mangle]
pub unsafe extern "C" fn quire_text_matcher_rollback(matcher: *mut Matcher, tokens: usize, error: *mut Bytes) -> i32 {
    guard(error, Status::Internal, || (*matcher).rollback(tokens))
}

/// # Safety
/// `bytes` must come from this library and not be used afterwards.
#[no_mangle]
pub unsafe extern "C" fn quire_text_free_bytes(bytes: Bytes) {
    if !bytes.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes.data, bytes.size)));
    }
}

/// # Safety
/// `ids` must come from this library and not be used afterwards.
#[no_mangle]
pub unsafe extern "C" fn quire_text_free_ids(ids: Ids) {
    if !ids.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(ids.data, ids.size)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(work: impl FnOnce() -> Result<()>) -> (i32, String) {
        let mut error = Bytes { data: std::ptr::null_mut(), size: 0 };
        unsafe {
            let status = guard(&mut error, Status::Internal, work);
            let message = String::from_utf8_lossy(slice(error.data, error.size)).into_owned();
            quire_text_free_bytes(error);
            (status, message)
        }
    }

    #[test]
    fn a_panic_becomes_a_status() {
        let (status, message) = run(|| panic!("on {}", "purpose"));
        assert_eq!(status, Status::Internal as i32);
        assert!(message.contains("on purpose"), "{message}");
        let none: Option<u8> = None;
        assert_eq!(run(|| none.map(|_| ()).ok_or_else(|| unreachable!("nothing there"))).0, Status::Internal as i32);
    }

    #[test]
    fn an_error_keeps_its_status_and_message() {
        assert_eq!(run(|| Err(Error::corrupt("broken"))), (Status::CorruptFile as i32, "broken".to_owned()));
        assert_eq!(run(|| Ok(())), (Status::Ok as i32, String::new()));
    }

    #[test]
    fn text_must_be_utf8() {
        let bad = b"ab\xff";
        let error = unsafe { text(Str { data: bad.as_ptr(), size: bad.len() }, "it") }.unwrap_err();
        assert_eq!(error.message, "it is not valid UTF-8 (at byte 2)");
        assert_eq!(unsafe { text(Str { data: std::ptr::null(), size: 0 }, "it") }.unwrap(), "");
    }
}
