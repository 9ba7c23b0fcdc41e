// As msg_zerocopy, through io_uring's SEND_ZC.
#include "torture.h"
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum { PIECE = 16 * PAGE, PIECES = 48, BYTES = PIECE * PIECES };

int main(void) {
    struct io_uring_params params = {0};
    int ring = syscall(SYS_io_uring_setup, 64, &params);
    if (ring < 0) {
        say("none: io_uring: %s\n", strerror(errno));
        return 0;
    }
    MUST(params.features & IORING_FEAT_SINGLE_MMAP);
    size_t ring_bytes = params.sq_off.array + params.sq_entries * 4;
    size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    if (cq_bytes > ring_bytes) ring_bytes = cq_bytes;
    unsigned char *shared = mmap(NULL, ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(NULL, params.sq_entries * sizeof(struct io_uring_sqe),
                                        PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    MUST(shared != MAP_FAILED && entries != MAP_FAILED);
    unsigned *tail = (unsigned *)(shared + params.sq_off.tail);
    unsigned *array = (unsigned *)(shared + params.sq_off.array);

    int listener = socket(AF_INET, SOCK_STREAM, 0);
    int small = 65536, large = 16 * MIB;
    MUST(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    MUST(bind(listener, (struct sockaddr *)&address, length) == 0);
    MUST(listen(listener, 1) == 0);
    MUST(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    int sender = socket(AF_INET, SOCK_STREAM, 0);
    if (setsockopt(sender, SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof large) != 0)
        MUST(setsockopt(sender, SOL_SOCKET, SO_SNDBUF, &large, sizeof large) == 0);
    MUST(connect(sender, (struct sockaddr *)&address, length) == 0);
    int receiver = accept(listener, NULL, NULL);
    MUST(receiver >= 0);

    unsigned char *at = take(BYTES), *back = take(BYTES);
    fill(at, BYTES, 1);
    for (unsigned i = 0; i < PIECES; i++) {
        struct io_uring_sqe *entry = &entries[i];
        memset(entry, 0, sizeof *entry);
        entry->opcode = IORING_OP_SEND_ZC;
        entry->fd = sender;
        entry->addr = (uintptr_t)(at + i * PIECE);
        entry->len = PIECE;
        entry->msg_flags = MSG_WAITALL;
        entry->flags = i + 1 < PIECES ? IOSQE_IO_LINK : 0;
        array[i] = i;
    }
    __atomic_store_n(tail, PIECES, __ATOMIC_RELEASE);
    MUST(syscall(SYS_io_uring_enter, ring, PIECES, 0, 0, NULL, 0) == PIECES);
    push_out();
    push_out();
    for (size_t done = 0; done < BYTES;) {
        ssize_t more = recv(receiver, back + done, BYTES - done, 0);
        MUST(more > 0);
        done += more;
    }
    CHECK(back, BYTES, 1, "received");
    CHECK(at, BYTES, 1, "sent");
    say("all that was sent was received\n");
}
