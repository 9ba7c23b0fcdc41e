//! Transports behind one trait: shared memory and TCP
