//! Reading the wire format.

use super::*;

type Read<'a> = (u32, Option<&'a [u8]>);

fn read_fields(message: &[u8]) -> Result<Vec<Read<'_>>, WireError> {
    fields(message)
        .map(|field| field.map(|field| (field.number, field.payload)))
        .collect()
}

#[test]
fn fields_of_every_wire_type_are_read() {
    let message = [
        &Message::new().string(1, "a").varint(2, 300).finish()[..],
        &[0x19, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0x25, 1, 2, 3, 4],
        &[0x2b, 0x33, 0x08, 0x01, 0x34, 0x2c],
        &Message::new().string(1000, "").finish(),
    ]
    .concat();
    let expected: Vec<Read<'_>> = vec![
        (1, Some(b"a")),
        (2, None),
        (3, None),
        (4, None),
        (5, None),
        (1000, Some(b"")),
    ];
    assert_eq!(read_fields(&message).unwrap(), expected);
    let whole: Vec<u8> = fields(&message)
        .flat_map(|field| field.unwrap().whole.to_vec())
        .collect();
    assert_eq!(whole, message);
}

#[test]
fn broken_messages_are_refused() {
    let messages: [&[u8]; 10] = [
        &[0x0a],                                                                // no length
        &[0x0a, 2, 1],                                                          // too short
        &[0x08],                                                                // no number
        &[0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1], // eleven bytes
        &[0x02, 0],                                                             // field 0
        &[0x80, 0x80, 0x80, 0x80, 0x10, 0],                                     // field 2^29
        &[0x0e],                                                                // wire type 6
        &[0x0c],                                                                // end of no group
        &[0x0b, 0x08, 0x01],                                                    // group without end
        &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],       // huge length
    ];
    for message in messages {
        assert!(read_fields(message).is_err(), "{message:x?}");
    }
    assert_eq!(read_fields(&[0x08, 1, 0x0a, 2]).unwrap_err().position, 2);
}

#[test]
fn largest_field_number_is_read() {
    let message = Message::new().varint(MAX_FIELD_NUMBER, 0).finish();
    assert_eq!(message, [0xf8, 0xff, 0xff, 0xff, 0x0f, 0]);
    let expected: Vec<Read<'_>> = vec![(MAX_FIELD_NUMBER, None)];
    assert_eq!(read_fields(&message).unwrap(), expected);
}
