//! `#[wic]` makes an async function where-independent; `#[bounded]` bounds the loops of a helper.
//!
//! Native code cannot be interrupted from outside, so the loops of a function are bounded from
//! inside: each turn of a `loop`, `while` or `for` takes one step from the call's budget, and a call
//! without steps left ends with an error. Known limit: loops inside of closures, nested functions and
//! code that is called but carries neither attribute are not counted.

use proc_macro::TokenStream;
use proc_macro2::Span;
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Block, Error, Expr, ExprAsync, ExprClosure, FnArg, Ident, Item, ItemFn, LitInt, LitStr, Pat,
    ReturnType, Token, Type, TypeParamBound, parse_macro_input, parse_quote,
};

/// `version = 2`, `name = "…"`, `idempotent`, `locks`.
#[derive(Default)]
struct Options {
    version: Option<LitInt>,
    name: Option<LitStr>,
    idempotent: bool,
    locks: bool,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> syn::Result<Options> {
        let mut options = Options::default();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            match key.to_string().as_str() {
                "version" => {
                    input.parse::<Token![=]>()?;
                    options.version = Some(input.parse()?);
                }
                "name" => {
                    input.parse::<Token![=]>()?;
                    options.name = Some(input.parse()?);
                }
                "idempotent" => options.idempotent = true,
                "locks" => options.locks = true,
                _ => {
                    let message =
                        "a WIC has the options version = N, name = \"…\", idempotent and locks";
                    return Err(Error::new(key.span(), message));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

/// Takes a step at each turn of every loop.
struct Bound {
    memory: Ident,
}

impl Bound {
    fn bound(&self, body: &mut Block) {
        let memory = &self.memory;
        body.stmts
            .insert(0, parse_quote!(::muninn_wic::Memory::tick(#memory)?;));
    }
}

impl VisitMut for Bound {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        visit_mut::visit_expr_mut(self, expr);
        match expr {
            Expr::Loop(expr) => self.bound(&mut expr.body),
            Expr::While(expr) => self.bound(&mut expr.body),
            Expr::ForLoop(expr) => self.bound(&mut expr.body),
            _ => {}
        }
    }
    // A question mark in there would return from something else.
    fn visit_expr_closure_mut(&mut self, _: &mut ExprClosure) {}
    fn visit_expr_async_mut(&mut self, _: &mut ExprAsync) {}
    fn visit_item_mut(&mut self, _: &mut Item) {}
}

type Bounds = Punctuated<TypeParamBound, Token![+]>;

/// The name of the first parameter, which must be the memory, and what it implements.
fn memory_of(function: &ItemFn) -> syn::Result<(Ident, Bounds)> {
    let wanted = "the first parameter is the memory: write 'mem: &impl Memory'";
    match function.sig.inputs.first() {
        Some(FnArg::Typed(first)) => match (&*first.pat, &*first.ty) {
            (Pat::Ident(name), Type::Reference(reference)) => match &*reference.elem {
                Type::ImplTrait(memory) => Ok((name.ident.clone(), memory.bounds.clone())),
                _ => Err(Error::new_spanned(first, wanted)),
            },
            _ => Err(Error::new_spanned(first, wanted)),
        },
        _ => Err(Error::new_spanned(&function.sig, wanted)),
    }
}

/// `T` of `Result<T, …>`.
fn reply_of(function: &ItemFn) -> syn::Result<Type> {
    let wanted = "a WIC gives back Result<…, WicError>";
    let ReturnType::Type(_, ty) = &function.sig.output else {
        return Err(Error::new_spanned(&function.sig, wanted));
    };
    if let Type::Path(path) = &**ty
        && let Some(last) = path.path.segments.last()
        && last.ident == "Result"
        && let syn::PathArguments::AngleBracketed(arguments) = &last.arguments
        && let Some(syn::GenericArgument::Type(reply)) = arguments.args.first()
    {
        return Ok(reply.clone());
    }
    Err(Error::new_spanned(ty, wanted))
}

/// Makes an async function where-independent.
///
/// ```text
/// #[wic(version = 1, idempotent)]
/// async fn first(mem: &impl Memory, count: u32) -> Result<u64, WicError> { … }
/// ```
///
/// The function becomes a type of the same name that implements `Wic`, registered under the name of
/// its crate and its own.
#[proc_macro_attribute]
pub fn wic(options: TokenStream, item: TokenStream) -> TokenStream {
    let options = parse_macro_input!(options as Options);
    let function = parse_macro_input!(item as ItemFn);
    expand(&options, function)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

fn expand(options: &Options, mut function: ItemFn) -> syn::Result<proc_macro2::TokenStream> {
    if function.sig.asyncness.is_none() {
        let message = "a WIC is an async function: its accesses may have to wait";
        return Err(Error::new_spanned(&function.sig, message));
    }
    let (memory, bounds) = memory_of(&function)?;
    let reply = reply_of(&function)?;
    let mut names: Punctuated<Pat, Token![,]> = Punctuated::new();
    let mut types: Vec<Type> = Vec::new();
    for input in function.sig.inputs.iter().skip(1) {
        let FnArg::Typed(argument) = input else {
            return Err(Error::new_spanned(input, "a WIC is not a method"));
        };
        names.push((*argument.pat).clone());
        types.push((*argument.ty).clone());
    }
    let (args, pattern) = match types.len() {
        1 => (quote!(#(#types)*), quote!(#names)),
        _ => (quote!((#(#types,)*)), quote!((#names))),
    };
    Bound {
        memory: memory.clone(),
    }
    .visit_block_mut(&mut function.block);
    let ident = &function.sig.ident;
    let name = match &options.name {
        Some(name) => quote!(#name),
        None => {
            let plain = ident.to_string();
            quote!(concat!(env!("CARGO_PKG_NAME"), ".", #plain))
        }
    };
    let one = LitInt::new("1", Span::call_site());
    let version = options.version.as_ref().unwrap_or(&one);
    let idempotent = options.idempotent;
    let locks = options.locks;
    let export = export_of(options, ident, version)?;
    let (visibility, attributes, body) = (&function.vis, &function.attrs, &function.block);
    let output = &function.sig.output;
    let held = format_ident!("__MemoryOf");
    Ok(quote! {
        #(#attributes)*
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug)]
        #visibility struct #ident;

        impl ::muninn_wic::Wic for #ident {
            const NAME: &'static str = #name;
            const VERSION: u32 = #version;
            const IDEMPOTENT: bool = #idempotent;
            const LOCKS: bool = #locks;
            type Args = #args;
            type Reply = #reply;
            async fn run<#held: #bounds>(#memory: &#held, #pattern: Self::Args) #output #body
        }

        ::muninn_wic::register!(#ident);

        // In a module of WebAssembly, by its name: there `muninn_wic` is `muninn-wic-guest`.
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            #[unsafe(export_name = #export)]
            extern "C" fn call(len: i32) -> i64 {
                ::muninn_wic::__call::<#ident>(len)
            }
        };
    })
}

/// As a module exports it: what it is called, which version, and whether it may be done twice.
fn export_of(options: &Options, ident: &Ident, version: &LitInt) -> syn::Result<LitStr> {
    let name = match &options.name {
        Some(name) => name.value(),
        None => {
            let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
            format!("{package}.{ident}")
        }
    };
    let version: u32 = version.base10_parse()?;
    let idempotent = if options.idempotent {
        " idempotent"
    } else {
        ""
    };
    Ok(LitStr::new(
        &format!("{name}@{version}{idempotent}"),
        Span::call_site(),
    ))
}

/// Takes a step from the call's budget at each turn of a loop, as `#[wic]` does. For helpers whose
/// first parameter is the memory and that give back `Result<…, WicError>`.
#[proc_macro_attribute]
pub fn bounded(_options: TokenStream, item: TokenStream) -> TokenStream {
    let mut function = parse_macro_input!(item as ItemFn);
    match memory_of(&function) {
        Ok((memory, _)) => {
            Bound { memory }.visit_block_mut(&mut function.block);
            quote!(#function).into()
        }
        Err(error) => error.into_compile_error().into(),
    }
}
