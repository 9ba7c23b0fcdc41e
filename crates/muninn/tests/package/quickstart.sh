#!/bin/sh
# The four lines of the README, on two machines that are two network namespaces. Run in namespaces of its own, for
# networks, mounts and processes: all of it goes with the last process.
#   quickstart.sh BINARY LINES FOLDER      LINES is what the README says, FOLDER is empty
set -eu
binary="$1" lines="$2" folder="$3"
mkdir "$folder/bin" "$folder/has-memory" "$folder/needs-memory"
ln -s "$binary" "$folder/bin/muninn"
# There is no ssh between namespaces: the file is copied, as scp would, with its mode.
printf '#!/bin/sh\ncp -p "%s/${1%%%%:*}/${1#*:}" "$2"\n' "$folder" > "$folder/bin/scp"
chmod +x "$folder/bin/scp"
PATH="$folder/bin:$PATH"
export PATH
line() { sed -n "s/^$1\\$ //p" "$lines" | sed -n "$2p"; }

# The other machine: a process that keeps a network of its own.
unshare --net sleep 600 &
other=$!
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
there() { nsenter --net --target "$other" "$@"; }
ip link add has type veth peer name needs
ip link set needs netns "$other"
ip address add 10.0.0.5/24 dev has && ip link set has up && ip link set lo up
there ip address add 10.0.0.6/24 dev needs && there ip link set needs up && there ip link set lo up

cd "$folder/has-memory"
sh -c "$(line has-memory 1)"
sh -c "exec $(line has-memory 2)" > served &
server=$!
until grep -qs 'listening at' served; do sleep 0.01; done
cd "$folder/needs-memory"
# 50 MiB of lines, in no order.
awk 'BEGIN { for (i = 0; i < 480000; i++) printf "%010d %s\n", (i * 7919) % 480013, "................................................................................................" }' > lines.txt
there sh -c "$(line needs-memory 1)"
there sh -c "$(line needs-memory 2)"
LC_ALL=C sort -c sorted.txt && echo "sorted: $(wc -l < sorted.txt) lines"
# A second after its process is gone a client's memory is back.
looks=0
until muninn status --pool 10.0.0.5:7000 --key-file "$folder/has-memory/pool.key" | grep -q ', 0B of ' || [ $looks = 300 ]; do
    looks=$((looks + 1))
    sleep 0.1
done
kill "$server"
wait "$server"
tail -n 1 "$folder/has-memory/served"
kill "$other"
