//! `#[derive(Managed)]` and `#[derive(Plain)]`.
//!
//! A struct that derives `Managed` is a *schema*: no value of it exists in Rust. What is generated
//! is its descriptor, a struct with which objects are made (`VertexInit`), and a trait with an
//! accessor and a setter for each field (`VertexFields`), implemented for `Local<Vertex>`. Fields
//! of type `Ref<T>` are references and go through the barriers; all others must be `Plain`.

use proc_macro::TokenStream;
use quote::{format_ident, quote};
use syn::{
    Data, DeriveInput, Error, Fields, GenericArgument, GenericParam, Generics, Member,
    PathArguments, Type,
};

/// The `T` of a field of type `Ref<T>`.
fn referent(field: &Type) -> Option<&Type> {
    let Type::Path(path) = field else { return None };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    match (last.ident == "Ref", arguments.args.first()?) {
        (true, GenericArgument::Type(referent)) => Some(referent),
        _ => None,
    }
}

/// Whether a type has the name of an integer. If it is something else, that does not compile.
fn is_number(field: &Type) -> bool {
    const NUMBERS: [&str; 10] = [
        "u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize",
    ];
    let Type::Path(path) = field else {
        return false;
    };
    NUMBERS.iter().any(|number| path.path.is_ident(number))
}

/// Makes a struct a type of objects of the managed heap.
#[proc_macro_derive(Managed)]
pub fn derive_managed(input: TokenStream) -> TokenStream {
    managed(input.into())
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

/// Parameters of a type, without lifetimes: nothing borrowed lies in the heap.
fn without_lifetimes(generics: &Generics) -> Result<(), Error> {
    match generics.lifetimes().next() {
        Some(lifetime) => Err(Error::new_spanned(
            lifetime,
            "what lies in the heap borrows nothing",
        )),
        None => Ok(()),
    }
}

/// Parameters with a scope's lifetime before them: as they are declared, and as they are used.
fn with_scope(generics: &Generics) -> (Generics, proc_macro2::TokenStream) {
    let mut scoped = generics.clone();
    scoped.params.insert(0, syn::parse_quote!('s));
    let uses = generics.params.iter().map(|param| match param {
        GenericParam::Type(param) => param.ident.clone(),
        GenericParam::Const(param) => param.ident.clone(),
        GenericParam::Lifetime(param) => param.lifetime.ident.clone(),
    });
    (scoped, quote!(<'s, #(#uses),*>))
}

fn managed(input: proc_macro2::TokenStream) -> Result<proc_macro2::TokenStream, Error> {
    let input: DeriveInput = syn::parse2(input)?;
    let name = &input.ident;
    let vis = &input.vis;
    without_lifetimes(&input.generics)?;
    let fields = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => &fields.named,
            other => {
                return Err(Error::new_spanned(
                    other,
                    "a managed struct has named fields",
                ));
            }
        },
        _ => {
            return Err(Error::new_spanned(
                name,
                "only structs are managed; derive Plain for an enum and use it as a field",
            ));
        }
    };
    // Names of the program must not change what is generated: everything is called by its full path,
    // and macros, which can be shadowed, are not used.
    let some = quote!(::core::option::Option);
    let word = quote!(::core::primitive::usize);
    let init = format_ident!("{name}Init");
    let accessors = format_ident!("{name}Fields");
    let (mut layout, mut refs, mut init_fields) = (Vec::new(), Vec::new(), Vec::new());
    let (mut writes, mut declared, mut defined) = (Vec::new(), Vec::new(), Vec::new());
    let schema = {
        let (_, uses, _) = input.generics.split_for_impl();
        quote!(<#name #uses>)
    };
    let mut previous = quote!(0usize);
    for (number, field) in fields.iter().enumerate() {
        let Some(ident) = &field.ident else { continue };
        let ty = &field.ty;
        let set = format_ident!("set_{ident}");
        let offset = format_ident!("__MUNINN_OFFSET_{number}");
        let end = format_ident!("__MUNINN_END_{number}");
        let doc = format!("The field `{ident}`.");
        let set_doc = format!("Changes the field `{ident}`.");
        if let Some(target) = referent(ty) {
            layout.push(quote! {
                #[doc(hidden)]
                pub const #offset: #word = (#previous).next_multiple_of(8);
                #[doc(hidden)]
                pub const #end: #word = Self::#offset + 8;
            });
            refs.push(quote!(Self::#offset as ::core::primitive::u32));
            init_fields.push(quote!(pub #ident: #some<::muninn_heap::Local<'s, #target>>));
            writes.push(quote! {
                let value = self.#ident.as_ref().map(|local| local.raw());
                unsafe { object.init_ref(#schema::#offset, value) };
            });
            let swap = format_ident!("swap_{ident}");
            let swap_doc = format!(
                "Changes the field `{ident}` if it is `current`; what it is, if something else."
            );
            declared.push(quote! {
                #[doc = #doc]
                fn #ident(&self) -> #some<::muninn_heap::Local<'s, #target>>;
                #[doc = #set_doc]
                fn #set(&self, value: #some<&::muninn_heap::Local<'s, #target>>);
                #[doc = #swap_doc]
                fn #swap(
                    &self,
                    current: #some<&::muninn_heap::Local<'s, #target>>,
                    new: #some<&::muninn_heap::Local<'s, #target>>,
                ) -> ::core::result::Result<(), #some<::muninn_heap::Local<'s, #target>>>;
            });
            defined.push(quote! {
                #[inline]
                fn #ident(&self) -> #some<::muninn_heap::Local<'s, #target>> {
                    unsafe { self.load_ref(#schema::#offset) }
                }
                #[inline]
                fn #set(&self, value: #some<&::muninn_heap::Local<'s, #target>>) {
                    unsafe { self.store_ref(#schema::#offset, value) }
                }
                #[inline]
                fn #swap(
                    &self,
                    current: #some<&::muninn_heap::Local<'s, #target>>,
                    new: #some<&::muninn_heap::Local<'s, #target>>,
                ) -> ::core::result::Result<(), #some<::muninn_heap::Local<'s, #target>>> {
                    unsafe { self.swap_ref(#schema::#offset, current, new) }
                }
            });
        } else {
            layout.push(quote! {
                #[doc(hidden)]
                pub const #offset: #word =
                    (#previous).next_multiple_of(::muninn_heap::align_of_plain::<#ty>());
                #[doc(hidden)]
                pub const #end: #word = Self::#offset + ::muninn_heap::size_of_plain::<#ty>();
            });
            init_fields.push(quote!(pub #ident: #ty));
            writes
                .push(quote!(unsafe { object.init_plain::<#ty>(#schema::#offset, self.#ident) };));
            declared.push(quote! {
                #[doc = #doc]
                fn #ident(&self) -> #ty;
                #[doc = #set_doc]
                fn #set(&self, value: #ty);
            });
            defined.push(quote! {
                #[inline]
                fn #ident(&self) -> #ty {
                    unsafe { self.load_plain::<#ty>(#schema::#offset) }
                }
                #[inline]
                fn #set(&self, value: #ty) {
                    unsafe { self.store_plain::<#ty>(#schema::#offset, value) }
                }
            });
            if is_number(ty) {
                let swap = format_ident!("swap_{ident}");
                let result = quote!(::core::result::Result<(), #ty>);
                let doc = format!(
                    "Changes the field `{ident}` if it is `current`; what it is, if something else."
                );
                declared.push(quote! {
                    #[doc = #doc]
                    fn #swap(&self, current: #ty, new: #ty) -> #result;
                });
                defined.push(quote! {
                    #[inline]
                    fn #swap(&self, current: #ty, new: #ty) -> #result {
                        unsafe { self.swap_plain::<#ty>(#schema::#offset, current, new) }
                    }
                });
            }
        }
        previous = quote!(Self::#end);
    }
    let used: Vec<_> = fields.iter().filter_map(|f| f.ident.as_ref()).collect();
    let (impl_generics, uses, bounds) = input.generics.split_for_impl();
    let (scoped, scoped_uses) = with_scope(&input.generics);
    let (scoped_impl, _, _) = scoped.split_for_impl();
    let has_refs = !refs.is_empty();
    let is_generic = !input.generics.params.is_empty();
    // Without references or parameters nothing in it is bound to a scope.
    let (init_params, init_uses) = match (is_generic, has_refs) {
        (false, false) => (quote!(), quote!()),
        (false, true) => (quote!(<'s>), quote!(<'s>)),
        (true, _) => (quote!(#scoped), scoped_uses.clone()),
    };
    if is_generic && !has_refs {
        return Err(Error::new_spanned(
            &input.generics,
            "a managed type with parameters has a reference; without, derive Plain and put it in an array",
        ));
    }
    let init_doc = format!("What a new [`{name}`] is made from.");
    let text = match is_generic {
        true => quote!(::core::any::type_name::<Self>()),
        false => {
            let text = name.to_string();
            quote!(#text)
        }
    };
    let debug = (!is_generic).then(|| quote!(#[derive(::core::fmt::Debug)]));
    let count = refs.len();
    Ok(quote! {
        #[doc = #init_doc]
        #debug
        #[allow(missing_docs, dead_code, missing_debug_implementations)]
        #vis struct #init #init_params #bounds {
            #(#init_fields,)*
        }

        /// Accessors, through the heap's barriers.
        #[allow(dead_code)]
        #vis trait #accessors #scoped #bounds {
            #(#declared)*
        }

        // The offsets are those of the layout that the descriptor tells the heap.
        #[allow(clippy::undocumented_unsafe_blocks, clippy::identity_op, clippy::ptr_arg)]
        const _: () = {
            #[allow(dead_code)]
            impl #impl_generics #name #uses #bounds {
                #(#layout)*
                #[doc(hidden)]
                pub const __MUNINN_BYTES: ::core::primitive::u64 = {
                    let bytes = #previous;
                    ::core::assert!(
                        bytes < 1 << 24,
                        "a managed struct of 16 MiB or more is too large; keep arrays in objects of their own"
                    );
                    bytes as ::core::primitive::u64
                };
            }

            // SAFETY: the descriptor lists all references of the layout, which the accessors and
            // the initialisation below share.
            unsafe impl #impl_generics ::muninn_heap::Managed for #name #uses #bounds {
                const BYTES: ::core::primitive::u64 = Self::__MUNINN_BYTES;
                fn descriptor() -> ::muninn_heap::TypeDescriptor {
                    // Names the fields, so that a schema is not dead code.
                    let _ = |schema: &Self| { #(let _ = &schema.#used;)* };
                    let refs: [::core::primitive::u32; #count] = [#(#refs),*];
                    ::muninn_heap::TypeDescriptor {
                        name: ::std::string::String::from(#text),
                        shape: ::muninn_heap::Shape::Struct {
                            bytes: Self::__MUNINN_BYTES as ::core::primitive::u32,
                            refs: ::std::vec::Vec::from(refs),
                        },
                    }
                }
            }

            // SAFETY: each field is written at its place, by its type.
            unsafe impl #scoped_impl ::muninn_heap::Init<'s> for #init #init_uses #bounds {
                type Object = #name #uses;
                fn write(self, object: &::muninn_heap::Fresh<'s>) {
                    #(#writes)*
                }
            }

            impl #scoped_impl #accessors #scoped_uses for ::muninn_heap::Local<'s, #name #uses> #bounds {
                #(#defined)*
            }
        };
    })
}

/// Lets a `Copy` type without references be a field or an element: a fieldless enum, or a struct of
/// such types.
#[proc_macro_derive(Plain)]
pub fn derive_plain(input: TokenStream) -> TokenStream {
    plain(input.into())
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

/// Whether a `#[repr(packed)]` is there: its fields lie where no atomic access can be.
fn is_packed(input: &DeriveInput) -> bool {
    let reprs = input.attrs.iter().filter(|a| a.path().is_ident("repr"));
    reprs.into_iter().any(|attribute| {
        let mut packed = false;
        let _ = attribute.parse_nested_meta(|meta| {
            packed |= meta.path.is_ident("packed");
            if meta.input.peek(syn::token::Paren) {
                let content;
                syn::parenthesized!(content in meta.input);
                let _: proc_macro2::TokenStream = content.parse()?;
            }
            Ok(())
        });
        packed
    })
}

fn plain(input: proc_macro2::TokenStream) -> Result<proc_macro2::TokenStream, Error> {
    let input: DeriveInput = syn::parse2(input)?;
    let name = &input.ident;
    without_lifetimes(&input.generics)?;
    if is_packed(&input) {
        return Err(Error::new_spanned(name, "a packed struct is not plain"));
    }
    let some = quote!(::core::option::Option::Some);
    let none = quote!(::core::option::Option::None);
    let plain = quote!(::muninn_heap::Plain);
    let (load, store) = match &input.data {
        Data::Enum(data) => {
            let payload = data.variants.iter().find(|v| !v.fields.is_empty());
            if let Some(variant) = payload {
                return Err(Error::new_spanned(
                    variant,
                    "a plain enum has no payloads; keep them in fields of a managed struct",
                ));
            }
            let variants: Vec<_> = data.variants.iter().map(|v| &v.ident).collect();
            // The number of the variant, whatever its value: so zeros are the first.
            let bits = match variants.len() {
                0 => {
                    return Err(Error::new_spanned(
                        name,
                        "a plain enum has at least one variant",
                    ));
                }
                1..=256 => quote!(::core::primitive::u8),
                _ => quote!(::core::primitive::u16),
            };
            if let [only] = variants[..] {
                (quote!(#some(Self::#only {})), quote!())
            } else {
                let numbers: Vec<_> = (0..variants.len()).map(syn::Index::from).collect();
                (
                    quote! {
                        match unsafe { <#bits as #plain>::load(at)? } {
                            #(#numbers => #some(Self::#variants {}),)*
                            _ => #none,
                        }
                    },
                    quote! {
                        let number: #bits = match self {
                            #(Self::#variants {} => #numbers,)*
                        };
                        unsafe { <#bits as #plain>::store(number, at) };
                    },
                )
            }
        }
        Data::Struct(data) => {
            let types: Vec<&Type> = data.fields.iter().map(|f| &f.ty).collect();
            let members: Vec<Member> = data.fields.members().collect();
            let offset = quote!(::core::mem::offset_of!);
            (
                quote! {
                    #(const {
                        ::core::assert!(
                            #offset(Self, #members) % ::core::mem::align_of::<#types>() == 0,
                            "fields of a plain struct lie where their type may"
                        );
                    })*
                    #some(Self {
                        #(#members: unsafe {
                            <#types as #plain>::load(at.add(#offset(Self, #members)))?
                        },)*
                    })
                },
                quote! {
                    #(unsafe {
                        <#types as #plain>::store(self.#members, at.add(#offset(Self, #members)))
                    };)*
                },
            )
        }
        Data::Union(_) => return Err(Error::new_spanned(name, "a union is not plain")),
    };
    let mut generics = input.generics.clone();
    let params: Vec<_> = input
        .generics
        .type_params()
        .map(|p| p.ident.clone())
        .collect();
    let clause = generics.make_where_clause();
    for param in params {
        clause.predicates.push(syn::parse_quote!(#param: #plain));
    }
    let (impl_generics, _, bounds) = generics.split_for_impl();
    let (_, uses, _) = input.generics.split_for_impl();
    Ok(quote! {
        #[allow(clippy::undocumented_unsafe_blocks)]
        const _: () = {
            // SAFETY: an enum without payloads, or a struct of plain fields, each used at its place.
            unsafe impl #impl_generics ::muninn_heap::Plain for #name #uses #bounds {
                #[inline]
                #[allow(unused_variables)]
                unsafe fn load(at: *const ::core::primitive::u8) -> ::core::option::Option<Self> {
                    #load
                }
                #[inline]
                #[allow(unused_variables)]
                unsafe fn store(self, at: *mut ::core::primitive::u8) {
                    #store
                }
            }
        };
    })
}
