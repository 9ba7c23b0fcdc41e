"""Some ten thousand redis commands of all types: each reply and the final digest must be those of a
plain server. Unlike redis' own tests it has a working set far above the limit."""

import hashlib
import random
import socket
import time

import packages

PORT = 21977
SEED = 20


class RedisReplies:
    name = "redis-replies"
    about = "commands of all types sent to a plain redis-server and to one under Muninn, replies compared"
    units = ["commands"]
    deadline_s = 300

    def __init__(self):
        self.expected = None

    def prepare(self, sources):
        packages.need("redis-server")
        return packages.installed_version("redis-server")

    def execute(self, unit, run):
        server = run.start(["redis-server", "--port", str(PORT), "--dir", run.folder, "--save", "",
                            "--enable-debug-command", "yes", "--appendonly", "yes",
                            "--appendfsync", "no", "--maxclients", "100"], wrapped=True)
        seen = {}
        try:
            talk(run, server, seen)
        except (OSError, EOFError, TimeoutError) as problem:
            with open(run.log, "a") as log:
                print(f"compat: the conversation ended: {problem!r}", file=log)
        run.exit_code = None if run.timed_out else run.wait(server)
        if run.mode == "plain" and self.expected is None:
            self.expected = seen
        return {step: "ok" if seen[step] == self.expected.get(step) else "failed" for step in seen}


class Client:
    def __init__(self, run, server):
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", PORT), 5)
                break
            except OSError:
                if server.poll() is not None or run.time_left_s() <= 1:
                    raise
                time.sleep(0.05)
        self.socket.settimeout(run.time_left_s())
        self.file = self.socket.makefile("rb")

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words)
                            + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

    def reply(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        return kind + rest

    def ask(self, *words):
        self.send(*words)
        return self.reply()


def talk(run, server, seen):
    client = Client(run, server)
    rng = random.Random(SEED)

    def step(name, commands, unordered=False):
        digest = hashlib.sha256()
        for words in commands:
            answer = client.ask(*words)
            if unordered and isinstance(answer, list):
                answer = sorted(answer)
            digest.update(repr((words[0], answer)).encode())
        seen[name] = digest.hexdigest()

    def wait_idle(field):
        while f"{field}:0" not in client.ask("INFO", "persistence").decode():
            if run.time_left_s() <= 1:
                raise TimeoutError(field)
            time.sleep(0.05)

    def text(length):
        return rng.randbytes(length // 2).hex()

    def fill(part):
        step(f"{part} strings set", (("SET", f"s:{rng.randrange(9000)}", text(rng.randrange(64, 16000)))
                                     for _ in range(6000)))
        step(f"{part} lists pushed", ((rng.choice(("LPUSH", "RPUSH")), f"l:{rng.randrange(50)}",
                                       text(600)) for _ in range(6000)))
        step(f"{part} hashes set", (("HSET", f"h:{rng.randrange(80)}", f"f{rng.randrange(300)}",
                                     text(400)) for _ in range(6000)))
        step(f"{part} sets added", (("SADD", f"t:{rng.randrange(40)}", text(80)) for _ in range(4000)))
        step(f"{part} sorted sets added", (("ZADD", f"z:{rng.randrange(40)}", rng.randrange(10**6),
                                            text(60)) for _ in range(6000)))
        step(f"{part} streams added", (("XADD", f"x:{rng.randrange(20)}", f"{part[0]}-{n + 1}", "f",
                                        text(300)) for n in range(4000)))
        step(f"{part} bits and hyperloglogs", (command for _ in range(1500) for command in (
            ("SETBIT", f"b:{rng.randrange(5)}", rng.randrange(10**7), 1),
            ("PFADD", f"p:{rng.randrange(5)}", text(20)))))

    def read(part):
        step(f"{part} strings got", (("GET", f"s:{n}") for n in range(9000)))
        step(f"{part} lists ranged", (("LRANGE", f"l:{n}", 0, -1) for n in range(50)))
        step(f"{part} hashes got", (("HGETALL", f"h:{n}") for n in range(80)), unordered=True)
        step(f"{part} sets got", (("SMEMBERS", f"t:{n}") for n in range(40)), unordered=True)
        step(f"{part} sorted sets ranged", (("ZRANGE", f"z:{n}", 0, -1, "WITHSCORES") for n in range(40)))
        step(f"{part} streams ranged", (("XRANGE", f"x:{n}", "-", "+") for n in range(20)))
        step(f"{part} sorted", (("SORT", f"l:{n}", "ALPHA", "LIMIT", 0, 50) for n in range(50)))
        step(f"{part} united", [("ZUNION", 3, "z:1", "z:2", "z:3"), ("BITOP", "OR", "b:all", "b:0", "b:1"),
                                ("BITCOUNT", "b:all"), ("PFCOUNT", "p:0", "p:1", "p:2")])
        step(f"{part} digest", [("DEBUG", "DIGEST"), ("DBSIZE",)])

    fill("1 first")
    read("2 filled")
    lua = "local n=0 for i=1,#KEYS do n=n+#(redis.call('GET',KEYS[i]) or '') end return n"
    step("3 scripts", (("EVAL", lua, 50, *(f"s:{rng.randrange(9000)}" for _ in range(50)))
                       for _ in range(200)))
    step("3 saved", [("SAVE",)])
    read("4 after SAVE")
    client.ask("BGSAVE")
    fill("5 while BGSAVE")
    wait_idle("rdb_bgsave_in_progress")
    step("5 saved in the background", [("DEBUG", "DIGEST")])
    seen["5 BGSAVE succeeded"] = str("rdb_last_bgsave_status:ok" in client.ask("INFO", "persistence").decode())
    step("6 reloaded", [("DEBUG", "RELOAD"), ("DEBUG", "DIGEST")])
    read("6 after RELOAD")
    client.ask("BGREWRITEAOF")
    fill("7 while the log is rewritten")
    wait_idle("aof_rewrite_in_progress")
    seen["7 rewrite succeeded"] = str("aof_last_bgrewrite_status:ok" in client.ask("INFO", "persistence").decode())
    step("8 log loaded", [("DEBUG", "LOADAOF"), ("DEBUG", "DIGEST")])
    read("8 after LOADAOF")
    step("9 removed", (("DEL", f"s:{n}") for n in range(0, 9000, 2)))
    step("9 trimmed", (("LTRIM", f"l:{n}", 10, -10) for n in range(50)))
    read("9 after removal")
    client.send("SHUTDOWN", "NOSAVE")
