;; Follows the links of a list, written by hand: the interface is of WebAssembly, not of Rust.
;;
;; Arguments: where the first node lies (8 bytes) and how many to visit (4 bytes), little-endian. Reply: the
;; value of the last node (8 bytes). A node is its value and the address of the next one, 8 bytes each.
(module
  (import "muninn" "args" (func $args (param $to i32) (param $len i32) (result i32)))
  (import "muninn" "reply" (func $reply (param $from i32) (param $len i32)))
  (import "muninn" "read" (func $read (param $at i64) (param $to i32) (param $len i32) (result i32)))

  ;; 0: the arguments. 16: the node that was read last.
  (memory (export "memory") 1)
  ;; What lies below is put back after each call.
  (global (export "__heap_base") i32 (i32.const 32))

  (func (export "wat.walk@1 idempotent") (param $len i32) (result i64)
    (local $at i64)
    (local $hops i32)
    (local $error i32)
    (if (i32.ne (call $args (i32.const 0) (i32.const 12)) (i32.const 12))
      (then (return (i64.const 7)))) ;; these are no arguments of this function
    (local.set $at (i64.load (i32.const 0)))
    (local.set $hops (i32.load (i32.const 8)))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $hops)))
        (local.set $error (call $read (local.get $at) (i32.const 16) (i32.const 16)))
        ;; What the host said was wrong is what the function ends with.
        (if (local.get $error)
          (then (return (i64.extend_i32_u (local.get $error)))))
        (local.set $at (i64.load (i32.const 24)))
        (local.set $hops (i32.sub (local.get $hops) (i32.const 1)))
        (br $next)))
    (call $reply (i32.const 16) (i32.const 8))
    (i64.const 0)))
