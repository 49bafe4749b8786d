//! Batches: several messages in one body, each with a property list of its own.

use amqprs::{BasicProperties, ByteArray, DecimalValue, FieldArray, FieldTable, FieldValue, LongStr};

pub const CONTENT_TYPE: &str = "application/vnd.messagebus.batch";
const ENTRIES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 32;

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn long(&mut self) -> Option<&'a [u8]> {
        let count = u32::from_be_bytes(self.number()?);
        self.take(count as usize)
    }

    fn short(&mut self) -> Option<String> {
        let [count] = self.number()?;
        String::from_utf8(self.take(count as usize)?.to_vec()).ok()
    }

    fn value(&mut self, depth: usize) -> Option<FieldValue> {
        let [kind] = self.number()?;
        Some(match kind {
            b't' => FieldValue::t(self.number::<1>()?[0] != 0),
            b'b' => FieldValue::b(i8::from_be_bytes(self.number()?)),
            b'B' => FieldValue::B(u8::from_be_bytes(self.number()?)),
            b's' | b'U' => FieldValue::s(i16::from_be_bytes(self.number()?)),
            b'u' => FieldValue::u(u16::from_be_bytes(self.number()?)),
            b'I' => FieldValue::I(i32::from_be_bytes(self.number()?)),
            b'i' => FieldValue::i(u32::from_be_bytes(self.number()?)),
            b'l' | b'L' => FieldValue::l(i64::from_be_bytes(self.number()?)),
            b'f' => FieldValue::f(f32::from_be_bytes(self.number()?)),
            b'd' => FieldValue::d(f64::from_be_bytes(self.number()?)),
            b'D' => {
                let [places] = self.number()?;
                FieldValue::D(DecimalValue::new(places, i32::from_be_bytes(self.number()?)))
            }
            b'T' => FieldValue::T(u64::from_be_bytes(self.number()?)),
            b'S' => match String::from_utf8(self.long()?.to_vec()) {
                Ok(text) => FieldValue::S(LongStr::try_from(text).ok()?),
                // This library's text is UTF-8 alone.
                Err(fault) => FieldValue::x(ByteArray::try_from(fault.into_bytes()).ok()?),
            },
            b'x' => FieldValue::x(ByteArray::try_from(self.long()?.to_vec()).ok()?),
            b'A' => {
                let mut inner = Reader(self.long()?);
                let mut values = Vec::new();
                while !inner.0.is_empty() && depth < DEPTH_MAX {
                    let Some(value) = inner.value(depth + 1) else { break };
                    values.push(value);
                }
                FieldValue::A(FieldArray::try_from(values).ok()?)
            }
            b'F' => FieldValue::F(Reader(self.long()?).table(depth + 1)),
            b'V' => FieldValue::V,
            _ => return None,
        })
    }

    /// All of the table up to the first entry that cannot be read.
    fn table(&mut self, depth: usize) -> FieldTable {
        let mut table = FieldTable::new();
        while !self.0.is_empty() && depth < DEPTH_MAX {
            let (Some(name), Some(value)) = (self.short(), self.value(depth)) else { break };
            let Ok(name) = name.try_into() else { break };
            table.insert(name, value);
        }
        table
    }

    fn properties(&mut self) -> Option<BasicProperties> {
        let flags = u16::from_be_bytes(self.number()?);
        let mut made = BasicProperties::default();
        if flags & 1 != 0 {
            return None;
        }
        for bit in (2..16).rev().filter(|bit| flags & (1 << bit) != 0) {
            match bit {
                15 => _ = made.with_content_type(&self.short()?),
                14 => _ = made.with_content_encoding(&self.short()?),
                13 => _ = made.with_headers(Reader(self.long()?).table(0)),
                12 => _ = made.with_delivery_mode(self.number::<1>()?[0]),
                11 => _ = made.with_priority(self.number::<1>()?[0]),
                10 => _ = made.with_correlation_id(&self.short()?),
                9 => _ = made.with_reply_to(&self.short()?),
                8 => _ = made.with_expiration(&self.short()?),
                7 => _ = made.with_message_id(&self.short()?),
                6 => _ = made.with_timestamp(u64::from_be_bytes(self.number()?)),
                5 => _ = made.with_message_type(&self.short()?),
                4 => _ = made.with_user_id(&self.short()?),
                3 => _ = made.with_app_id(&self.short()?),
                _ => _ = made.with_cluster_id(&self.short()?),
            }
        }
        Some(made)
    }
}

/// Take a body apart; None when it is no row of 1 to 10,000 entries.
pub fn entries(body: &[u8]) -> Option<Vec<(BasicProperties, Vec<u8>)>> {
    let mut rest = Reader(body);
    let mut found = Vec::new();
    while !rest.0.is_empty() {
        let mut head = Reader(rest.long()?);
        let mut properties = head.properties()?;
        if !head.0.is_empty() || found.len() == ENTRIES_MAX {
            return None;
        }
        if properties.content_type().is_none() {
            properties.with_content_type("application/octet-stream");
        }
        found.push((properties, rest.long()?.to_vec()));
    }
    (!found.is_empty()).then_some(found)
}
