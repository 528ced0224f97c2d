//! Messages for the guest, one after the other as there are buffers.

use super::*;

impl Bus {
    /// Posts a message of words to whoever made the contact.
    pub(super) fn answer(&self, kind: u32, words: &[u32]) {
        let contact = lock(&self.table).contact;
        contact.iter().for_each(|contact| self.answer_to(*contact, kind, words));
    }

    pub(super) fn answer_to(&self, contact: Contact, kind: u32, words: &[u32]) {
        let head = [kind, 0];
        let payload = head.iter().chain(words).flat_map(|word| word.to_le_bytes()).collect();
        self.post(&mut lock(&self.table), contact, payload);
    }

    pub(super) fn post(&self, table: &mut Table, contact: Contact, payload: Vec<u8>) {
        table.outgoing.push_back((contact.vp, contact.sint, payload));
        self.push(table);
    }

    pub(super) fn push(&self, table: &mut Table) {
        while let Some((vp, sint, payload)) = table.outgoing.front() {
            if self.parts.host.post(*vp, *sint, payload) == Posted::Full {
                let again = self.parts.clock.now().saturating_add(AGAIN);
                let me: Weak<dyn Timer> = self.me.clone();
                self.parts.timers.replace(again, me);
                return;
            }
            table.outgoing.pop_front();
        }
    }

    /// There are no sockets of the host: what is looked for is nowhere.
    pub(super) fn no_socket(&self, message: &[u8]) {
        let Some(ids) = message.get(8..40) else { return };
        /// STATUS_CONNECTION_REFUSED.
        const REFUSED: u32 = 0xc000_0236;
        let mut payload = Vec::from([message::TL_RESULT, 0].map(u32::to_le_bytes).as_flattened());
        payload.extend(ids);
        payload.extend(REFUSED.to_le_bytes());
        let mut table = lock(&self.table);
        if let Some(contact) = table.contact {
            self.post(&mut table, contact, payload);
        }
    }
}
