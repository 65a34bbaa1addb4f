//! What goes wrong, in the terms of the C boundary: a status and a message a user can act on.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    Ok = 0,
    /// The caller's text, ids or messages are wrong.
    InvalidInput = 1,
    /// A model's file contradicts itself or its format.
    CorruptFile = 2,
    /// Understood, but not implemented here.
    Unsupported = 3,
    /// The work would be larger than the limits allow.
    TooLarge = 4,
    /// Our own fault.
    Internal = 5,
}

#[derive(Clone, Debug)]
pub struct Error {
    pub status: Status,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Error { status, message: message.into() }
    }
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Status::InvalidInput, message)
    }
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Status::CorruptFile, message)
    }
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Status::Unsupported, message)
    }
}
