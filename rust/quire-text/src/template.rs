//! Chat templates: Jinja as transformers runs it (trim_blocks, lstrip_blocks, loop controls, Python's string methods,
//! tojson, raise_exception, strftime_now, generation blocks).
//!
//! A template cannot include another, and rendering ends when its fuel does: fuel bounds both the time and the memory.

use crate::error::{Error, Result, Status};
use crate::json;
use crate::strftime::LocalTime;
use minijinja::value::{from_args, Value, ValueKind};
use minijinja::{Environment, ErrorKind, State};
use std::collections::BTreeMap;

/// One unit is one instruction or 64 bytes of new data. Templates of the field need 1 to 3 a byte of messages; those that
/// look back from each message over all before it need 160 a byte at 600 messages.
const BASE_FUEL: u64 = 4_000_000;
const FUEL_PER_BYTE: u64 = 1_000;
const MAX_FUEL: u64 = 200_000_000;
const MAX_SOURCE: usize = 4 << 20;
const CHAT: &str = "chat";
const TOOL_USE: &str = "tool use";

pub struct ChatTemplate {
    env: Environment<'static>,
    has_tool_use: bool,
    special_tokens: BTreeMap<String, Value>,
}

/// Marks the error that a template raises itself.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

impl ChatTemplate {
    /// `tool_use` is what some models use in place of `source` when a request has tools; empty if there is none.
    /// `special_tokens` is a JSON object of names such as bos_token and their texts.
    pub fn compile(source: &str, tool_use: &str, special_tokens: &str) -> Result<Self> {
        let special_tokens = serde_json::from_str(special_tokens)
            .map_err(|e| Error::invalid(format!("special tokens must be a JSON object: {e}")))?;

        let mut env = environment();
        let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| Error::new(Status::Internal, e.to_string()))?);
        add_template(&mut env, CHAT, source)?;
        let has_tool_use = !tool_use.is_empty();
        if has_tool_use {
            add_template(&mut env, TOOL_USE, tool_use)?;
        }
        Ok(ChatTemplate { env, has_tool_use, special_tokens })
    }

    /// `messages` is a JSON list, `options` a JSON object: add_generation_prompt, tools, documents, and any other name
    /// that the template may use.
    pub fn render(&self, messages: &str, options: &str, now: LocalTime) -> Result<String> {
        now.check()?;
        let parsed: Value =
            serde_json::from_str(messages).map_err(|e| Error::invalid(format!("messages cannot be read: {e}")))?;
        if parsed.kind() != ValueKind::Seq {
            return Err(Error::invalid("messages must be a list"));
        }
        let options_map: BTreeMap<String, Value> = serde_json::from_str(options)
            .map_err(|e| Error::invalid(format!("template options must be a JSON object: {e}")))?;
        if options_map.contains_key("messages") {
            return Err(Error::invalid("template options must not name 'messages'"));
        }

        let with_tools = options_map.get("tools").is_some_and(|tools| !tools.is_none());
        let name = if with_tools && self.has_tool_use { TOOL_USE } else { CHAT };

        let mut context = self.special_tokens.clone();
        context.insert("add_generation_prompt".into(), Value::from(false));
        context.insert("tools".into(), Value::from(()));
        context.insert("documents".into(), Value::from(()));
        context.insert("strftime_now".into(), Value::from_function(move |format: String| now.format(&format)));
        context.extend(options_map);
        context.insert("messages".into(), parsed);

        let mut env = self.env.clone();
        let bytes = (messages.len() + options.len()) as u64;
        env.set_fuel(Some(BASE_FUEL.saturating_add(FUEL_PER_BYTE.saturating_mul(bytes)).min(MAX_FUEL)));
        let template = env.get_template(name).map_err(render_error)?;
        template.render(Value::from(context)).map_err(render_error)
    }
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(python_method);
    env.add_filter("tojson", json::tojson);
    // In Jinja everything with a length and items is a sequence.
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    env.add_function("raise_exception", |message: String| -> std::result::Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    env
}

/// Methods that minijinja-contrib lacks, then its own.
fn python_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> std::result::Result<Value, minijinja::Error> {
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args);
    };
    match method {
        "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            Ok(rsplit(text, separator, limit).into_iter().map(Value::from).collect())
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn rsplit(text: &str, separator: Option<&str>, limit: Option<i64>) -> Vec<String> {
    let parts = limit.and_then(|n| usize::try_from(n).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
    let mut found: Vec<String> = match separator.filter(|s| !s.is_empty()) {
        Some(separator) => text.rsplitn(parts, separator).map(str::to_owned).collect(),
        None => {
            let mut words = Vec::new();
            let mut rest = text.trim_end();
            while !rest.is_empty() {
                let cut = if words.len() + 1 < parts { rest.rfind(char::is_whitespace) } else { None };
                let Some(cut) = cut else {
                    words.push(rest.to_owned());
                    break;
                };
                let space = rest[cut..].chars().next().map_or(1, char::len_utf8);
                words.push(rest[cut + space..].to_owned());
                rest = rest[..cut].trim_end();
            }
            words
        }
    };
    found.reverse();
    found
}

fn add_template(env: &mut Environment<'static>, name: &'static str, source: &str) -> Result<()> {
    if source.len() > MAX_SOURCE {
        return Err(Error::new(Status::TooLarge, format!("the chat template is longer than {MAX_SOURCE} bytes")));
    }
    env.add_template_owned(name, without_generation_tags(source))
        .map_err(|e| Error::corrupt(format!("the chat template cannot be parsed: {}", describe(&e))))
}

/// transformers marks the assistant's tokens with {% generation %} blocks, which print what they hold.
fn without_generation_tags(source: &str) -> String {
    let tag = regex::Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").expect("a constant pattern compiles");
    tag.replace_all(source, |found: &regex::Captures| {
        let word = if found.get(2).is_some() { "endif" } else { "if true" };
        format!("{{%{} {word} {}%}}", &found[1], &found[3])
    })
    .into_owned()
}

fn describe(error: &minijinja::Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), |d| format!("{}: {d}", error.kind()));
    error.line().map_or_else(|| detail.clone(), |line| format!("{detail} (line {line})"))
}

fn render_error(error: minijinja::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut innermost = &error;
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return Error::invalid(format!("the chat template refuses these messages: {message}"));
        }
        if let Some(cause) = cause.downcast_ref::<minijinja::Error>() {
            innermost = cause;
        }
        source = cause.source();
    }
    if innermost.kind() == ErrorKind::OutOfFuel {
        return Error::new(Status::TooLarge, "the chat template does more work than its messages can need");
    }
    Error::invalid(format!("the chat template fails on these messages: {}", describe(innermost)))
}
