import java.util.SplittableRandom;

/** PageRank over a graph of objects, with garbage made on the way. */
public class Graph {
    static final class Node {
        double rank = 1.0, next;
        Node[] out;
        Object scrap;
    }

    public static void main(String[] args) {
        int count = Integer.parseInt(args[0]);
        int rounds = Integer.parseInt(args[1]);
        SplittableRandom dice = new SplittableRandom(1);
        Node[] nodes = new Node[count];
        for (int i = 0; i < count; i++) nodes[i] = new Node();
        for (Node node : nodes) {
            node.out = new Node[4 + dice.nextInt(8)];
            for (int i = 0; i < node.out.length; i++) {
                // Most links are near, as in a crawl; some go anywhere.
                int to = dice.nextInt(4) == 0 ? dice.nextInt(count) : -1;
                node.out[i] = to >= 0 ? nodes[to] : null;
            }
        }
        for (int i = 0; i < count; i++) {
            Node[] out = nodes[i].out;
            for (int k = 0; k < out.length; k++) {
                if (out[k] == null) out[k] = nodes[(i + dice.nextInt(2000)) % count];
            }
        }
        for (int round = 0; round < rounds; round++) {
            for (Node node : nodes) node.next = 0.15;
            for (Node node : nodes) {
                double share = 0.85 * node.rank / node.out.length;
                for (Node to : node.out) to.next += share;
            }
            int made = 0;
            for (Node node : nodes) {
                node.rank = node.next;
                // Every round replaces an eighth of the scraps.
                if (made++ % 8 == round % 8) node.scrap = new byte[16];
            }
        }
        double sum = 0;
        for (Node node : nodes) sum = sum * 0.999999 + node.rank;
        System.out.println(Long.toHexString(Double.doubleToLongBits(sum)));
    }
}
