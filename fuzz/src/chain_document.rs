//! Chain documents: YAML or JSON as the bytes say.

use ctrlmesh_contract::Chain;
use ctrlmesh_contract::chain::MAX_DOCUMENT_BYTES;

/// However bad the document, its error fits into a log line and a status.
const MAX_MESSAGE_BYTES: usize = 32 * 1024;

/// No panic; messages are bounded; an accepted document is valid, and is the same when printed and read again.
pub fn chain_document(data: &[u8]) {
    let chain = match Chain::parse(data) {
        Ok(chain) => chain,
        Err(error) => {
            let message = error.to_string();
            assert!(message.len() < MAX_MESSAGE_BYTES, "{} bytes of message", message.len());
            return;
        }
    };
    assert_eq!(chain.validate(), Ok(()));
    let printed = chain.to_json();
    // YAML's short forms may grow beyond the bound.
    if printed.len() <= MAX_DOCUMENT_BYTES {
        let again = Chain::parse(printed.as_bytes()).expect("a printed document is read");
        assert_eq!(again.to_json(), printed);
        assert_eq!(again, chain);
    }
}
