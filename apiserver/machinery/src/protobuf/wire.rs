//! The wire format: tags, variable-length numbers, lengths.

use super::ProtobufError;

/// A value as it stands on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireValue<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Four or eight bytes; no field of ours is one.
    Fixed(u8),
}

impl WireValue<'_> {
    /// The error for a field that is of another type.
    pub(super) fn wrong_for(self, field: &str) -> ProtobufError {
        let wire_type = match self {
            Self::Varint(_) => 0,
            Self::Bytes(_) => 2,
            Self::Fixed(wire_type) => wire_type,
        };
        ProtobufError::WireType { wire_type, field: field.to_owned() }
    }
}

/// Reads one message field by field.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next field's number and value; `None` at the end.
    pub(super) fn field(&mut self) -> Result<Option<(u32, WireValue<'a>)>, ProtobufError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtobufError::Overflow)?;
        let value = match tag & 7 {
            0 => WireValue::Varint(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Overflow)?;
                WireValue::Bytes(self.take(length)?)
            }
            1 => self.take(8).map(|_| WireValue::Fixed(1))?,
            5 => self.take(4).map(|_| WireValue::Fixed(5))?,
            // Groups are of a past that Kubernetes never had.
            other => {
                let wire_type = u8::try_from(other).unwrap_or_default();
                return Err(ProtobufError::WireType { wire_type, field: number.to_string() });
            }
        };
        Ok(Some((number, value)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtobufError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(ProtobufError::Eof)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut number = 0u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(ProtobufError::Eof)?;
            self.rest = rest;
            number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or_default();
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(ProtobufError::Overflow)
    }
}
