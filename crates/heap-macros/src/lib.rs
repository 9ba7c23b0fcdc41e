//! `#[derive(Managed)]` and `#[derive(Plain)]`.
//!
//! A struct that derives `Managed` is a *schema*: no value of it exists in Rust. What is generated
//! is its descriptor, a struct with which objects are made (`VertexInit`), and a trait with an
//! accessor and a setter for each field (`VertexFields`), implemented for `Local<Vertex>`. Fields
//! of type `Ref<T>` are references and go through the barriers; all others must be `Plain`.

use proc_macro::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Fields, GenericArgument, PathArguments, Type};

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

/// Makes a struct a type of objects of the managed heap.
#[proc_macro_derive(Managed)]
pub fn derive_managed(input: TokenStream) -> TokenStream {
    managed(input.into())
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

fn managed(input: proc_macro2::TokenStream) -> Result<proc_macro2::TokenStream, Error> {
    let input: DeriveInput = syn::parse2(input)?;
    let name = &input.ident;
    let vis = &input.vis;
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &input.generics,
            "a managed type has no parameters",
        ));
    }
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
    let init = format_ident!("{name}Init");
    let accessors = format_ident!("{name}Fields");
    let (mut layout, mut refs, mut init_fields) = (Vec::new(), Vec::new(), Vec::new());
    let (mut writes, mut declared, mut defined) = (Vec::new(), Vec::new(), Vec::new());
    let mut previous = quote!(0usize);
    for (number, field) in fields.iter().enumerate() {
        let Some(ident) = &field.ident else { continue };
        let ty = &field.ty;
        let set = format_ident!("set_{ident}");
        let offset = format_ident!("OFFSET_{number}");
        let end = format_ident!("END_{number}");
        let doc = format!("The field `{ident}`.");
        let set_doc = format!("Changes the field `{ident}`.");
        if let Some(target) = referent(ty) {
            layout.push(quote! {
                const #offset: usize = (#previous).next_multiple_of(8);
                const #end: usize = #offset + 8;
            });
            refs.push(quote!(#offset as u32));
            init_fields.push(quote!(pub #ident: Option<::muninn_heap::Local<'s, #target>>));
            writes.push(
                quote!(unsafe { object.init_ref(#offset, self.#ident.as_ref().map(|l| l.raw())) };),
            );
            declared.push(quote! {
                #[doc = #doc]
                fn #ident(&self) -> Option<::muninn_heap::Local<'s, #target>>;
                #[doc = #set_doc]
                fn #set(&self, value: Option<&::muninn_heap::Local<'s, #target>>);
            });
            defined.push(quote! {
                #[inline]
                fn #ident(&self) -> Option<::muninn_heap::Local<'s, #target>> {
                    unsafe { self.load_ref(#offset) }
                }
                #[inline]
                fn #set(&self, value: Option<&::muninn_heap::Local<'s, #target>>) {
                    unsafe { self.store_ref(#offset, value) }
                }
            });
        } else {
            layout.push(quote! {
                const #offset: usize =
                    (#previous).next_multiple_of(::muninn_heap::align_of_plain::<#ty>());
                const #end: usize = #offset + ::core::mem::size_of::<#ty>();
            });
            init_fields.push(quote!(pub #ident: #ty));
            writes.push(quote!(unsafe { object.init_plain::<#ty>(#offset, self.#ident) };));
            declared.push(quote! {
                #[doc = #doc]
                fn #ident(&self) -> #ty;
                #[doc = #set_doc]
                fn #set(&self, value: #ty);
            });
            defined.push(quote! {
                #[inline]
                fn #ident(&self) -> #ty {
                    unsafe { self.load_plain::<#ty>(#offset) }
                }
                #[inline]
                fn #set(&self, value: #ty) {
                    unsafe { self.store_plain::<#ty>(#offset, value) }
                }
            });
        }
        previous = quote!(#end);
    }
    let used: Vec<_> = fields.iter().filter_map(|f| f.ident.as_ref()).collect();
    // Without references nothing in it is bound to a scope.
    let brand = (!refs.is_empty()).then(|| quote!(<'s>));
    let init_doc = format!("What a new [`{name}`] is made from.");
    let text = name.to_string();
    Ok(quote! {
        #[doc = #init_doc]
        #[derive(Debug)]
        #[allow(missing_docs, dead_code)]
        #vis struct #init #brand {
            #(#init_fields,)*
        }

        /// Accessors, through the heap's barriers.
        #[allow(dead_code)]
        #vis trait #accessors<'s> {
            #(#declared)*
        }

        // The offsets are those of the layout that the descriptor tells the heap.
        #[allow(clippy::undocumented_unsafe_blocks, clippy::identity_op)]
        const _: () = {
            #(#layout)*

            // SAFETY: the descriptor lists all references of the layout, which the accessors and
            // the initialisation below share.
            unsafe impl ::muninn_heap::Managed for #name {
                const BYTES: u64 = (#previous) as u64;
                fn descriptor() -> ::muninn_heap::TypeDescriptor {
                    // Names the fields, so that a schema is not dead code.
                    let _ = |schema: &#name| { #(let _ = &schema.#used;)* };
                    ::muninn_heap::TypeDescriptor {
                        name: #text.to_string(),
                        shape: ::muninn_heap::Shape::Struct {
                            bytes: (#previous) as u32,
                            refs: vec![#(#refs),*],
                        },
                    }
                }
            }

            impl<'s> ::muninn_heap::Init<'s> for #init #brand {
                type Object = #name;
                fn write(self, object: &::muninn_heap::Fresh<'s>) {
                    #(#writes)*
                }
            }

            impl<'s> #accessors<'s> for ::muninn_heap::Local<'s, #name> {
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

fn plain(input: proc_macro2::TokenStream) -> Result<proc_macro2::TokenStream, Error> {
    let input: DeriveInput = syn::parse2(input)?;
    let name = &input.ident;
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &input.generics,
            "a plain type has no parameters",
        ));
    }
    let checked: Vec<&Type> = match &input.data {
        Data::Enum(data) => {
            let payload = data.variants.iter().find(|v| !v.fields.is_empty());
            if let Some(variant) = payload {
                return Err(Error::new_spanned(
                    variant,
                    "a plain enum has no payloads; keep them in fields of a managed struct",
                ));
            }
            Vec::new()
        }
        Data::Struct(data) => data.fields.iter().map(|f| &f.ty).collect(),
        Data::Union(_) => return Err(Error::new_spanned(name, "a union is not plain")),
    };
    Ok(quote! {
        #[allow(clippy::undocumented_unsafe_blocks)]
        const _: () = {
            fn is_plain<T: ::muninn_heap::Plain>() {}
            #[allow(dead_code)]
            fn all_are_plain() { #(is_plain::<#checked>();)* }
            // SAFETY: an enum without payloads, or a struct of plain fields.
            unsafe impl ::muninn_heap::Plain for #name {}
        };
    })
}
