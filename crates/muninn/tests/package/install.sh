#!/bin/sh
# Installs the package into a copy of this system that nobody else sees, uses it there as ordinary users,
# and removes it again. Run in a mount namespace of its own: what it mounts goes with it.
#   install.sh FOLDER PACKAGE      FOLDER is empty and on no overlay
set -eu
folder="$1" package="$2"
say() { echo "== $*"; }

mount --make-rprivate /
mount -t tmpfs -o size=2g tmpfs "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
root="$folder/root"
mount -t proc proc "$root/proc"
# Devices of its own: a rule or a mode that is set here is not set outside.
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero urandom userfaultfd; do
    numbers="$(stat -c '%Hr %Lr' "/dev/$device")"
    mknod -m 666 "$root/dev/$device" c $numbers
done
chmod 600 "$root/dev/userfaultfd"
mkdir -m 1777 "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -m 1777 "$root/run/lock"
cp "$package" "$root/tmp/muninn.deb"
before="$(chroot "$root" sh -c 'getent passwd; getent group' | sort)"

export DEBIAN_FRONTEND=noninteractive HOME=/root
unset XDG_CACHE_HOME XDG_RUNTIME_DIR XDG_STATE_HOME XDG_CONFIG_HOME
inside() { chroot "$root" "$@"; }
# A login, as far as rights go.
as() {
    user="$1" && shift
    inside setpriv --reuid "$user" --regid "$user" --init-groups --inh-caps=-all --bounding-set=-all \
        env HOME="/home/$user" USER="$user" PATH=/usr/bin:/bin "$@"
}

say install
inside dpkg -i /tmp/muninn.deb
inside useradd --create-home alice
inside useradd --create-home mallory

say "check before setup"
as alice muninn setup --check && code=0 || code=$?
echo "code $code"
as alice muninn run --local 32MiB -- true && code=0 || code=$?
echo "code $code"

say setup
inside muninn setup --user alice
inside muninn setup --user alice

say "check after setup"
as alice muninn setup --check && code=0 || code=$?
echo "code $code"

say run
# 96 MiB in one line: tail has to keep it until it has seen the end.
as alice muninn run --local 32MiB --stats --json /tmp/alice.json -- \
    sh -c 'yes muninn | tr -d "\n" | head -c 100663296 | tail -n 1 | wc -c' && code=0 || code=$?
echo "code $code"
grep -E '"(evicted|local_peak_bytes|processes)"' "$root/tmp/alice.json"
inside find /home/alice/.cache -type f -printf 'cached %f %m %u\n'

say "one who was not added"
as mallory muninn run --local 32MiB -- true && code=0 || code=$?
echo "code $code"

say "without a home, and with one that cannot be written"
as alice env -u HOME muninn run --local 32MiB -- echo works && code=0 || code=$?
echo "code $code"
mount -t tmpfs -o ro tmpfs "$root/home/alice"
as alice muninn run --local 32MiB -- echo works too && code=0 || code=$?
umount "$root/home/alice"
echo "code $code"

say "planted by another user"
rm -rf "$root/home/alice/.cache" "$root/var/tmp/muninn-library-$(inside id -u alice)"
name="libmuninn_preload-0000000000000000.so"
for place in var/tmp tmp dev/shm; do
    as mallory mkdir "/$place/muninn-library-$(inside id -u alice)"
    as mallory sh -c "echo evil > /$place/muninn-library-$(inside id -u alice)/$name"
done
as alice env HOME=/nonexistent muninn run --local 32MiB -- sh -c 'echo "$LD_PRELOAD" | sed "s/[0-9][0-9]*/N/g"' && code=0 || code=$?
echo "code $code"
mount -t tmpfs -o noexec,mode=777 tmpfs "$root/home/alice"
as alice muninn run --local 32MiB -- sh -c 'echo "$LD_PRELOAD" | sed "s/[0-9][0-9]*/N/g"' && code=0 || code=$?
umount "$root/home/alice"
echo "code $code"
rm -rf "$root"/var/tmp/muninn-* "$root"/dev/shm/muninn-library-*

say "root's programs become somebody else"
inside muninn run --local 32MiB -- setpriv --reuid mallory --regid mallory --clear-groups sh -c 'echo "$LD_PRELOAD"; cat /proc/self/maps | grep -c libmuninn' && code=0 || code=$?
echo "code $code"

say serve
inside sh -c 'XDG_RUNTIME_DIR=/run; export XDG_RUNTIME_DIR
setpriv --reuid muninn --regid muninn --clear-groups muninn serve --memory 16MiB --socket /tmp/m.sock --json > /tmp/served &
pid=$!
until [ -s /tmp/served ]; do sleep 0.05; done
muninn status --pool unix:/tmp/m.sock
kill $pid
wait $pid'

say remove
rm -rf "$root/home/alice" "$root/home/mallory"
inside userdel alice
inside userdel mallory
inside dpkg -r muninn
inside stat -c 'device %a %G' /dev/userfaultfd
inside dpkg -P muninn
after="$(inside sh -c 'getent passwd; getent group' | sort)"
[ "$before" = "$after" ] && echo "users and groups as before"
# Of what was written below the system's own folders, what bears our name. What programs were run with is root's own.
left="$(cd "$folder/upper" && find . -iname '*muninn*' ! -type c ! -path './var/lib/dpkg/*' ! -path './var/log/*' ! -path './tmp/*' ! -path './root/*')"
echo "left: ${left:-nothing}"
