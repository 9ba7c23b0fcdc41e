// The programs of `muninn bench heap`, in Java: the same steps, the same random numbers, the same
// checksums. Arguments: workload, scale. Prints the checksum and the seconds.

import java.nio.charset.StandardCharsets;
import java.util.Locale;

public final class HeapBench {
    /** SplitMix64, as crates/types/src/rng.rs has it. */
    static final class Rng {
        long state;
        Rng(long seed) { state = seed; }
        long next() {
            state += 0x9E3779B97F4A7C15L;
            long z = state;
            z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
            z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
            return z ^ (z >>> 31);
        }
        long below(long bound) {
            long x = next();
            long high = Math.multiplyHigh(x, bound);
            return x < 0 ? high + bound : high;
        }
        double unit() { return (next() >>> 11) / (double) (1L << 53); }
    }

    static final class Edge { int target; Edge next; }
    static final class Vertex { int id, degree; Edge edges; }
    static final class Rank { final double value; Rank(double v) { value = v; } }
    static final class Contribution { int target; double value; }
    static final class Pair { int from, to; Pair next; Pair(int f, int t, Pair n) { from = f; to = t; next = n; } }
    static final class Entry { long key, version; byte[] value; Entry next; }
    static final class Row { long key, balance; byte[] name; Row(long k, long b, byte[] n) { key = k; balance = b; name = n; } }
    static final class Page {
        int count; final boolean leaf; final long[] keys = new long[FAN]; final Page[] pages; final Row[] rows;
        Page(boolean leaf) { this.leaf = leaf; pages = leaf ? null : new Page[FAN + 1]; rows = leaf ? new Row[FAN] : null; }
    }

    static final int FAN = 32;
    static volatile Object sink;

    static long pageRank(int vertices) {
        Rng rng = new Rng(42);
        Vertex[] list = new Vertex[vertices];
        for (int id = 0; id < vertices; id++) {
            Vertex v = new Vertex();
            v.id = id;
            v.degree = 1 + (int) rng.below(16);
            for (int i = 0; i < v.degree; i++) {
                double x = rng.unit();
                Edge e = new Edge();
                e.target = (int) (x * x * vertices);
                e.next = v.edges;
                v.edges = e;
            }
            list[id] = v;
        }
        Rank[] ranks = new Rank[vertices];
        for (int id = 0; id < vertices; id++) ranks[id] = new Rank(1.0);
        for (int round = 0; round < 8; round++) {
            double[] sums = new double[vertices];
            for (int id = 0; id < vertices; id++) {
                Vertex v = list[id];
                double share = ranks[id].value / v.degree;
                for (Edge e = v.edges; e != null; e = e.next) {
                    Contribution part = new Contribution();
                    part.target = e.target;
                    part.value = share;
                    sink = part; // kept from being optimised away
                    sums[part.target] += part.value;
                }
            }
            Rank[] next = new Rank[vertices];
            for (int id = 0; id < vertices; id++) next[id] = new Rank(0.15 + 0.85 * sums[id]);
            ranks = next;
        }
        long sum = 0;
        for (Rank r : ranks) sum = sum * 31 + Double.doubleToRawLongBits(r.value);
        return sum;
    }

    static long hash(int from, int to) {
        long word = ((long) from << 32) | (to & 0xffffffffL);
        return (word * 0x9E3779B97F4A7C15L) >>> 20;
    }

    static long nextPowerOfTwo(long n) { return n <= 1 ? 1 : Long.highestOneBit(n - 1) << 1; }

    static long closure(int vertices, long most) {
        Rng rng = new Rng(7);
        int[][] edges = new int[vertices][];
        for (int v = 0; v < vertices; v++) {
            int a = Math.min(v + 1 + (int) rng.below(20), vertices - 1);
            int b = Math.min(v + 1 + (int) rng.below(20), vertices - 1);
            edges[v] = new int[] {a, b};
        }
        int buckets = (int) nextPowerOfTwo(most / 2);
        Pair[] table = new Pair[buckets];
        Pair front = null;
        for (int from = 0; from < vertices; from++) front = new Pair(from, from, front);
        long count = 0, sum = 0;
        while (front != null) {
            Pair next = null;
            for (Pair here = front; here != null; here = here.next) {
                for (int to : edges[here.to]) {
                    int at = (int) hash(here.from, to) & (buckets - 1);
                    Pair known = table[at];
                    while (known != null && !(known.from == here.from && known.to == to)) known = known.next;
                    if (known == null && count < most) {
                        table[at] = new Pair(here.from, to, table[at]);
                        next = new Pair(here.from, to, next);
                        count++;
                        sum += hash(here.from, to);
                    }
                }
            }
            front = next;
        }
        return sum ^ count;
    }

    static byte[] filled(int len, byte value) {
        byte[] bytes = new byte[len];
        java.util.Arrays.fill(bytes, value);
        return bytes;
    }

    static double skewed(double x) {
        x = x * x;
        x = x * x;
        return x * x;
    }

    static long store(long most, int inserts, int updates, long operations) {
        Rng rng = new Rng(99);
        int buckets = (int) nextPowerOfTwo(most / 2);
        Entry[] table = new Entry[buckets];
        int[] sizes = new int[buckets];
        long nextKey = 0, count = 0, sum = 0;
        int sweep = 0;
        for (long done = 0; done < operations; done++) {
            long what = rng.below(100);
            boolean insert = what < inserts || nextKey == 0;
            long key;
            if (insert) {
                key = nextKey++;
            } else {
                double x = skewed(rng.unit());
                key = nextKey - 1 - Math.min((long) (x * Math.min(most, nextKey)), nextKey - 1);
            }
            int at = (int) ((key * 0x9E3779B97F4A7C15L) >>> 24) & (buckets - 1);
            if (insert) {
                Entry e = new Entry();
                e.key = key;
                e.value = filled(32 + (int) (key % 64), (byte) key);
                e.next = table[at];
                table[at] = e;
                sizes[at]++;
                count++;
                while (count > most) {
                    count -= sizes[sweep];
                    sizes[sweep] = 0;
                    table[sweep] = null;
                    sweep = (sweep + 1) & (buckets - 1);
                }
                continue;
            }
            for (Entry e = table[at]; e != null; e = e.next) {
                if (e.key == key) {
                    if (what < inserts + updates) {
                        e.version++;
                        e.value = filled(32 + (int) ((key + e.version) % 64), (byte) e.version);
                    } else {
                        sum = sum * 31 + (e.value[e.value.length - 1] & 0xff) + e.version;
                    }
                    break;
                }
            }
        }
        for (Entry chain : table)
            for (Entry e = chain; e != null; e = e.next) sum += e.key * (e.version + 1);
        return sum ^ count;
    }

    static int place(long[] keys, int count, long key) {
        int low = 0, high = count;
        while (low < high) {
            int middle = (low + high) / 2;
            if (keys[middle] < key) low = middle + 1; else high = middle;
        }
        return low;
    }

    static void split(Page parent, int at) {
        Page left = parent.pages[at], right = new Page(left.leaf);
        int half = FAN / 2;
        long middle = left.keys[half - 1];
        System.arraycopy(left.keys, half, right.keys, 0, FAN - half);
        if (left.leaf) {
            for (int i = half; i < FAN; i++) { right.rows[i - half] = left.rows[i]; left.rows[i] = null; }
            left.count = half;
        } else {
            for (int i = half; i <= FAN; i++) { right.pages[i - half] = left.pages[i]; left.pages[i] = null; }
            left.count = half - 1;
        }
        right.count = FAN - half;
        for (int i = parent.count - 1; i >= at; i--) {
            parent.keys[i + 1] = parent.keys[i];
            parent.pages[i + 2] = parent.pages[i + 1];
        }
        parent.keys[at] = middle;
        parent.pages[at + 1] = right;
        parent.count++;
    }

    static long keyOf(long n) { return n * 3; }

    static long table(long rows, long operations) {
        Rng rng = new Rng(5);
        Page root = new Page(true);
        long inserted = 0, sum = 0;
        for (long done = 0; done < operations; done++) {
            if (inserted < rows && (inserted == 0 || rng.below(100) < 40)) {
                long key = keyOf(inserted++);
                Row row = new Row(key, key & 0xff, ("row " + key).getBytes(StandardCharsets.UTF_8));
                if (root.count == FAN) {
                    Page above = new Page(false);
                    above.pages[0] = root;
                    split(above, 0);
                    root = above;
                }
                Page page = root;
                while (true) {
                    int at = place(page.keys, page.count, key);
                    if (page.leaf) {
                        for (int i = page.count - 1; i >= at; i--) {
                            page.keys[i + 1] = page.keys[i];
                            page.rows[i + 1] = page.rows[i];
                        }
                        page.keys[at] = key;
                        page.rows[at] = row;
                        page.count++;
                        break;
                    }
                    Page next = page.pages[at];
                    if (next.count == FAN) {
                        split(page, at);
                        if (page.keys[at] < key) next = page.pages[at + 1];
                    }
                    page = next;
                }
            } else {
                double x = skewed(rng.unit());
                long key = keyOf(inserted - 1 - Math.min((long) (x * inserted), inserted - 1));
                Page page = root;
                while (!page.leaf) page = page.pages[place(page.keys, page.count, key)];
                int at = place(page.keys, page.count, key);
                Row row = page.rows[at];
                if (row == null) continue;
                if (rng.below(2) == 0) {
                    page.rows[at] = new Row(key, row.balance + 1, row.name);
                } else {
                    sum = sum * 31 + (row.balance ^ row.key);
                }
            }
        }
        return sum;
    }

    public static void main(String[] args) {
        double scale = Double.parseDouble(args[1]);
        java.util.function.LongUnaryOperator scaled = n -> Math.max((long) (n * scale), 16);
        long start = System.nanoTime();
        long sum = switch (args[0]) {
            case "nothing" -> 0; // what the virtual machine needs for itself
            case "pagerank" -> pageRank((int) scaled.applyAsLong(150_000));
            case "closure" -> closure((int) scaled.applyAsLong(40_000), scaled.applyAsLong(1_200_000));
            case "kv-insert" -> store(scaled.applyAsLong(400_000), 60, 20, scaled.applyAsLong(1_600_000));
            case "kv-update" -> store(scaled.applyAsLong(400_000), 40, 60, scaled.applyAsLong(1_600_000));
            case "table" -> table(scaled.applyAsLong(300_000), scaled.applyAsLong(2_400_000));
            default -> throw new IllegalArgumentException(args[0]);
        };
        double seconds = (System.nanoTime() - start) / 1e9;
        System.out.println(String.format(Locale.ROOT, "%016x %.6f", sum, seconds));
    }
}
